"""The TRL engine: `cotune.JointTrainer`, a GRPOTrainer whose rollouts cotune makes, for scripts and run files.

Read `joint_trainer.py` first: from its arguments to the best policy. `script.py` reads what a script gives,
`run_file_setup.py` what a run file says. `trl_joint.py` answers TRL's `rollout_func`, `policy_update.py` changes TRL's
update, and `trl_engine.py` implements the `Engine` interface.
"""
