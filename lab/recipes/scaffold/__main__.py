"""`python -m recipes.scaffold`: train the bundled policy by its recipe and measure it."""

from recipes.rebuilding import rebuild
from recipes.scaffold.card import write_card
from recipes.scaffold.pretrain import Recipe, pretrain

if __name__ == "__main__":
    rebuild("scaffold", __doc__, Recipe(), pretrain, write_card)
