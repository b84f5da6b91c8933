"""Worlds that were made for one result each; cotune registers their environments by entry points."""
