"""What reproduces cotune's results; see lab/README.md."""
