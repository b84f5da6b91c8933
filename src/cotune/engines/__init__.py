"""Engines that train the weights. `engine.py` is the interface; trl/, verl/ and tinker/ implement it."""
