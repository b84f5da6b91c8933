"""`python -m recipes.ladder`: train the bundled policy by its recipe and measure it."""

from recipes.ladder.card import write_card
from recipes.ladder.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

if __name__ == "__main__":
    rebuild("ladder", __doc__, Recipe(), pretrain, write_card)
