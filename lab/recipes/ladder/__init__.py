"""The bundled policy of the world `ladder`: its recipe, and (under `weights/`) what it made.

`phrases` writes requests, `demonstrations` acts on them, `pretrain` fits tokenizer and weights, `bank.txt`
holds requests that were written apart, `card` measures the result. `python -m recipes.ladder` runs all
of them; `python -m recipes.ladder.qualify` checks that the world can tell joint training from staged.
"""
