"""A run's result in a form that serves elsewhere: chat template, model card, export, upload."""
