"""FST: Learning, Fast and Slow (arXiv 2605.12484), and GEPA (arXiv 2507.19457), which is its rounds without training."""
