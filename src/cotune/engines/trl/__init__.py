"""The TRL engine: GRPOTrainer, ridden through `rollout_func`, a reward function and a callback."""
