"""Steerable SmolLM2: an adapter that teaches SmolLM2-135M-Instruct the requests of `arithmetic`.

`python -m recipes.steerable` merges the adapter in this folder into the model, for `lab/suites/steerable.yaml`.
"""
