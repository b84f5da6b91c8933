"""Training of the bundled policies. Not part of the installed package."""
