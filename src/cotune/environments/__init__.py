"""Environments: where tasks come from, how tool calls are answered, how an episode is scored."""
