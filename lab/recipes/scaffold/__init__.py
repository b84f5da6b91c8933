"""How the policy of the world `scaffold` was trained: `python -m recipes scaffold`."""
