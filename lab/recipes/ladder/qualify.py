"""Check that the world `ladder` can tell joint training from staged: `python -m recipes.ladder.qualify`.

The best way is "together", then "one by one", then "in order".
"""

from cotune.worlds.ladder import WRITTEN
from recipes.ladder.measure import BENCH
from recipes.qualifying import qualify

if __name__ == "__main__":
    qualify(BENCH, WRITTEN)
