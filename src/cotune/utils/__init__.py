"""Helpers without knowledge of training: imports by name, text, packages."""
