"""`python -m recipes.geo`: train the bundled policy by its recipe and measure it."""

from recipes.geo.card import write_card
from recipes.geo.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

if __name__ == "__main__":
    rebuild("geo", __doc__, Recipe(), pretrain, write_card)
