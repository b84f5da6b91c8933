"""`python -m recipes.arithmetic`: train the bundled policy by its recipe and measure it."""

from collections.abc import Sequence

from cotune.policy.policy_files import bundled_folder
from recipes.arithmetic.card import write_card
from recipes.arithmetic.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

WEIGHTS = bundled_folder("arithmetic")


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    module = "recipes.arithmetic"
    rebuild(module, __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
