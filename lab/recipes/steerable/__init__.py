"""The recipe of steerable SmolLM2: an adapter that teaches SmolLM2-135M-Instruct the requests of `arithmetic`.

Not part of the package. `python -m recipes.steerable` merges the adapter in this folder into the model, for
`configs/suites/steerable.yaml`.
"""
