"""The optimizer LLM: endpoints, offline rules, and the ledger of what a run spends."""
