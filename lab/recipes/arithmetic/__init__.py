"""How the policy of the world `arithmetic` was trained: `python -m recipes arithmetic`."""
