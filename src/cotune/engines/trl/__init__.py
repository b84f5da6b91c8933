"""The TRL engine: trains with GRPOTrainer through `rollout_func`, a reward function and callbacks.

Read `hooks.py` first: one joint run and the arguments that connect it to a GRPOTrainer.
`trl_engine.py` implements the `Engine` interface, `setup.py` loads and checks the parts of a run
file, `run.py` trains it, `trainer.py` adds context distillation to GRPOTrainer, `checkpoints.py`
defines when a checkpoint is complete, and `own_trainer.py` is the API for a user's own GRPOTrainer.
`sft.py` is supervised fine-tuning.
"""
