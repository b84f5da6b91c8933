"""How the bundled policies are trained. Not part of the installed package."""
