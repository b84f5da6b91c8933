"""Rides veRL's V1 trainer, through its public hooks alone; the only importer of verl.

Read `trainer.py` first: veRL's loop with what cotune does at its hooks. `rollouts.py` takes assignments to
the agent loops and brings trajectories back, `agent.py` drives one episode there, `settings.py` turns a run
file into veRL's configuration, `run.py` starts it all.
"""
