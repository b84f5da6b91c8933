"""The records of a run: run folder, costs, locks, and how to read them back."""
