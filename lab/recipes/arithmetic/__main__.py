"""`python -m recipes.arithmetic`: train the bundled policy by its recipe and measure it."""

from recipes.arithmetic.card import write_card
from recipes.arithmetic.pretrain import Recipe, pretrain
from recipes.rebuilding import rebuild

if __name__ == "__main__":
    rebuild("arithmetic", __doc__, Recipe(), pretrain, write_card)
