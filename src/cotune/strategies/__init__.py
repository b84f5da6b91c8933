"""Which prompt each rollout is sampled under and trained on: one small file a method."""
