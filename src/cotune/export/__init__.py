"""A run's result as a folder that can be served anywhere: chat template, model card, export, upload."""
