"""The bundled policy of the world `arithmetic`: its recipe, and (under `weights/`) what it made.

`phrases` writes hints, `demonstrations` acts under them, `pretrain` fits tokenizer and weights,
`card` measures the result. `python -m recipes.arithmetic` runs all of them.
"""
