"""`python -m recipes.geo`: train the bundled policy by its recipe and measure it."""

from collections.abc import Sequence

from cotune.policy.policy_files import bundled_folder
from recipes.geo.card import write_card
from recipes.geo.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

WEIGHTS = bundled_folder("geo")


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    module = "recipes.geo"
    rebuild(module, __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
