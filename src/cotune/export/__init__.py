"""A run's result as a folder that serves anywhere: chat template, model card, export, upload."""
