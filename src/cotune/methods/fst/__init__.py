"""FST: slow weights by RL, fast weights by GEPA (arXiv 2605.12484)."""
