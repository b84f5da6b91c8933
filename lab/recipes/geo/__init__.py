"""The bundled policy of the world `geo`: its recipe, and (under `weights/`) what the recipe made.

`phrases` writes instructions, `demonstrations` acts under them, `pretrain` fits tokenizer and
weights, `card` measures the result. `python -m recipes.geo` runs all of them.
"""
