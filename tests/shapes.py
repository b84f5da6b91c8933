"""The config.json of published models, as far as it is read, and a hub's cache that holds them."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

_QWEN2_3B = {
    "model_type": "qwen2", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN2_7B = {
    **_QWEN2_3B, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3_06B = {
    "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN3_4B = {
    **_QWEN3_06B, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
    "num_attention_heads": 32,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-3B": _QWEN2_3B,
    "Qwen/Qwen2.5-3B-Instruct": _QWEN2_3B,
    "Qwen/Qwen2.5-7B": _QWEN2_7B,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN2_7B,
    "Qwen/Qwen3-0.6B": _QWEN3_06B,
    "Qwen/Qwen3-4B": _QWEN3_4B,
}


def use_cache(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Make a folder the hub's cache, with the config.json of some models; the hub is out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in names:
        repo = folder / f"models--{name.replace('/', '--')}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text("c0ffee")
        (repo / "snapshots" / "c0ffee").mkdir(parents=True)
        text = json.dumps(CONFIGS[name])
        (repo / "snapshots" / "c0ffee" / "config.json").write_text(text)
