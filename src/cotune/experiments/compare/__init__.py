"""`cotune compare`: methods × seeds at equal numbers of policy rollouts."""
