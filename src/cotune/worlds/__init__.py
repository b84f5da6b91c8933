"""The bundled worlds, their policies, and the offline rules that stand in for an LLM there."""
