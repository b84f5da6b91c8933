"""The veRL engine: trains with veRL's V1 trainer through its public hooks.

No other package imports verl. Read `trainer.py` first: veRL's training loop, and how it exchanges rows with the agent
loops. `agent.py` runs one episode there, `verl_engine.py` checks a run file without veRL, `settings.py` turns it into
veRL's configuration, and `run.py` has the joint run and starts it.
"""
