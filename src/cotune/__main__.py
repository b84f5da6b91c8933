from cotune.cli import main

main()
