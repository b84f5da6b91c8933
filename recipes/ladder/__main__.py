"""`python -m recipes.ladder`: train the bundled policy by its recipe and measure it."""

from collections.abc import Sequence

from cotune.policy.policy_files import bundled_folder
from recipes.ladder.card import write_card
from recipes.ladder.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

WEIGHTS = bundled_folder("ladder")


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    rebuild("recipes.ladder", __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
