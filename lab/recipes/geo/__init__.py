"""How the policy of the world `geo` was trained: `python -m recipes geo`."""
