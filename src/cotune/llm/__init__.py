"""Optimizer LLMs: a client of an endpoint, an object of the user's own, a bank of texts."""
