"""`cotune plan`: estimates and measurements of what a run takes."""
