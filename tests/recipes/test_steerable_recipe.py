"""The recipe of the steerable SmolLM2, and the adapter that is kept beside it."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file

from cotune.policy.adapters import adapter_base
from recipes.fitting import FitRecipe, new_model, token_losses
from recipes.steerable.__main__ import ADAPTER
from recipes.steerable.fit import BASE, Recipe, new_adapter


def test_the_adapter_is_the_recipes_and_names_the_package_as_its_base() -> None:
    config = json.loads((ADAPTER / "adapter_config.json").read_text())
    assert adapter_base(ADAPTER) == BASE
    assert (config["r"], config["lora_alpha"]) == (Recipe().rank, 2 * Recipe().rank)
    weights = load_file(ADAPTER / "adapter_model.safetensors")
    assert len(weights) == 30 * 7 * 2  # layers, linear layers in each, A and B
    assert all(w.dtype == torch.bfloat16 and w.isfinite().all() for w in weights.values())
    assert all(w.any() for w in weights.values())


class Tokens:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self) -> int:
        return 16


def test_the_adapter_alone_is_trained() -> None:
    shape = FitRecipe(hidden_size=16, layers=1, heads=2, kv_heads=1)
    base = new_model(Tokens(), shape).to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
    model = new_adapter(base, replace(Recipe(), rank=2))
    ids = torch.randint(16, (2, 6))
    loss = token_losses(model.get_base_model(), ids, ids).mean()
    assert loss.dtype == torch.float32
    loss.backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert len(trained) == 7 * 2
    assert all("lora_" in name for name in trained)
