"""The bundled policies, one per bundled world: weights, tokenizer, recipe and card."""
