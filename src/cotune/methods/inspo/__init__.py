"""INSPO: Instruction-Policy Co-Evolution (arXiv 2512.01945)."""
