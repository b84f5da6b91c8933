"""`cotune plan`: estimate or measure a run's cost."""
