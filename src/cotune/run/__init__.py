"""The records of a run: run folder, ledger, journal, locks, and how to read them back."""
