"""How the policy of the world `ladder` was trained: `python -m recipes ladder`."""
