"""Retrievers: from query strings to the best passages of a corpus."""
