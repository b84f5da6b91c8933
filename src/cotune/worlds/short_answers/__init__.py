"""Tasks for small pretrained models, answered in a few words, each with a bank of written texts.

They have no policy of their own. `extract3` asks about one of three people in a passage, `arith` for sums,
differences and products. A bank holds instructions and hints that were written before any training; part of it
is never proposed.
"""
