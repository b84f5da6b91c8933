"""Environments: sources of tasks, responses to tool calls, scores of episodes."""
