"""`python -m cotune.policies.arithmetic`: trains the bundled policy by its recipe and measures it."""

from collections.abc import Sequence
from pathlib import Path

from cotune.policies.arithmetic.card import write_card
from cotune.policies.arithmetic.pretrain import Recipe, pretrain
from cotune.policies.rebuilding import rebuild

WEIGHTS = Path(__file__).parent / "weights"


def main(arguments: Sequence[str] | None = None) -> None:
    """See `rebuild`."""
    module = "cotune.policies.arithmetic"
    rebuild(module, __doc__, WEIGHTS, Recipe(), pretrain, write_card, arguments)


if __name__ == "__main__":
    main()
