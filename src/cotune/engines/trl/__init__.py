"""The TRL engine: trains with GRPOTrainer through `rollout_func`, a reward function and callbacks.

Read `trl_joint.py` first: one joint run and the arguments that connect it to a GRPOTrainer.
`trl_engine.py` implements the `Engine` interface, `run_file_setup.py` loads and checks the parts of
a run file, `grpo.py` trains it, `joint_trainer.py` adds context distillation to GRPOTrainer,
`checkpoints.py` defines when a checkpoint is complete, and `library_api.py` is the API for your own
GRPOTrainer, with `library_run.py` as its run folder.
"""
