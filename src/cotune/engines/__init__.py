"""Engines: each sub-package rides on one trainer and is its only importer."""
