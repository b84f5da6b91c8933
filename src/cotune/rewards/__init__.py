"""Rewards: what answers and rollouts score."""
