"""`python -m recipes.ladder`: train the bundled policy by its recipe and measure it."""

from collections.abc import Sequence
from pathlib import Path

from cotune.policy.policy_files import policy_path
from recipes.ladder.card import write_card
from recipes.ladder.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

WEIGHTS = Path(policy_path("bundled:ladder"))


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    rebuild("recipes.ladder", __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
