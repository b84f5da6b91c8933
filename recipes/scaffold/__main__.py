"""`python -m recipes.scaffold`: train the bundled policy by its recipe and measure it."""

from collections.abc import Sequence

from cotune.policy.policy_files import bundled_folder
from recipes.rebuilding import rebuild
from recipes.scaffold.card import write_card
from recipes.scaffold.pretrain import Recipe, pretrain

WEIGHTS = bundled_folder("scaffold")


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    rebuild("recipes.scaffold", __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
