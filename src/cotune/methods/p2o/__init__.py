"""P²O: Joint Policy and Prompt Optimization (arXiv 2603.21877)."""
