"""The veRL engine: trains with veRL's V1 trainer through its public hooks.

No other package imports verl. Read `trainer.py` first: veRL's training loop and what cotune does at
each hook. `rollouts.py` sends assignments to the agent loops and collects trajectories, `agent.py`
runs one episode there, `arguments.py` checks a run file without veRL, `settings.py` turns it into
veRL's configuration, and `run.py` starts a run.
"""
