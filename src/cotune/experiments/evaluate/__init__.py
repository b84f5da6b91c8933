"""`cotune evaluate`: scores of a finished run."""
