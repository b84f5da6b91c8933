"""Engines: what trains the weights. `engine.py` is the seam; trl/ and verl/ implement it."""
