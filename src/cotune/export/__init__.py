"""A run's result as a folder that can be served: chat template, model card, export, upload."""
