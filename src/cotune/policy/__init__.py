"""A policy and its tokenizer: location, chat template, sampling, adapters."""
