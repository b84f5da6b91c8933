"""The bundled world, its policy, and the offline rules that stand in for an LLM there."""
