"""Engines that train the weights. `engine.py` is the interface; trl/ and verl/ implement it."""
