"""The methods: each decides which prompt a rollout is sampled under and trained on."""
