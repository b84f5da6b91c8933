from cotune.cli.app import main

main()
