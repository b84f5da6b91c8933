"""What a run writes down: run folder, ledger, journal, locks, and how to read them back."""
