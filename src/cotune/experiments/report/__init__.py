"""The report of a run or a suite: one HTML file without scripts, readable from disk."""
