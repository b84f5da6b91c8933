"""Check that the world `scaffold` can tell joint training from staged: `python -m recipes.scaffold.qualify`.

The best way is to search for every hop twice, then once.
"""

from recipes.qualifying import qualify
from recipes.scaffold.measure import BENCH

if __name__ == "__main__":
    qualify(BENCH, ("twice", "once"))
