"""Check that the world `scaffold` can tell joint training from staged: `python -m recipes.scaffold.qualify`.

No joint method runs here, only static GRPO. The world qualifies if

- the best way changes by training under the first best, by more than two standard errors;
- the new best way was below 0.1 % of the rollouts under the first best instruction;
- opposites score below the initial instruction, off-topic requests as it does within two standard errors;
- training under the initial instruction does not find the ways.
"""

from pathlib import Path

from recipes.qualifying import qualify
from recipes.scaffold.measure import BENCH

RUN_FILE = Path(__file__).parents[2] / "configs" / "scaffold-inspo.yaml"


def main() -> None:
    """See `qualify`."""
    qualify(BENCH, RUN_FILE, ("twice", "once"), __doc__)


if __name__ == "__main__":
    main()
