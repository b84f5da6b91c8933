"""The bundled policy of the world `scaffold`: its recipe, and (under `weights/`) what it made.

`phrases` writes requests, `demonstrations` acts on them, `pretrain` fits tokenizer and weights, `bank.txt`
holds requests that were written apart, `card` measures the result. `python -m recipes.scaffold` runs all
of them; `python -m recipes.scaffold.qualify` checks that the world can tell joint training from staged.
"""
