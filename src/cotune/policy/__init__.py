"""A policy and its tokenizer: where it lies, its chat template, sampling, adapters."""
