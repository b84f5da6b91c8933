"""The run file: its model, overrides, building, and checks before a run."""
