"""A saved policy outside of a run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from cotune.errors import ConfigError
from cotune.policy.adapters import make_savable
from cotune.policy.local_policy import load
from tests.helpers import raises_line
from tests.policy.tiny import small_policy


def rewrite(folder: Path, name: str, **fields: Any) -> None:
    """Change fields of a JSON file."""
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}), encoding="utf-8")


def rewrite_weights(folder: Path, rename: Callable[[str], str | None]) -> None:
    """Rename weights, or drop those without a name."""
    weights = load_file(folder / "model.safetensors")
    renamed = {name: tensor for old, tensor in weights.items() if (name := rename(old))}
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})


FAULTS: dict[str, Callable[[Path], object]] = {
    "no folder": shutil.rmtree,
    "a size that does not fit": lambda f: rewrite(f, "config.json", hidden_size=30),
    "an unknown architecture": lambda f: rewrite(f, "config.json", model_type="nope"),
    "remote code": lambda f: rewrite(
        f, "config.json", model_type="nope", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}
    ),
    "a quantised checkpoint": lambda f: rewrite(f, "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
    "weights that are no tensors": lambda f: (f / "model.safetensors").write_bytes(b"\x00" * 64),
    "a layer is missing": lambda f: rewrite_weights(f, lambda name: None if ".0.mlp." in name else name),
    "generation_config.json is a list": lambda f: (f / "generation_config.json").write_text("[1]"),
    "a damaged tokenizer": lambda f: (f / "tokenizer.json").write_text('{"model": 3}'),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_loaded_is_named_in_a_line(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(small_policy(), folder)
    FAULTS[fault](folder)
    with raises_line(match=r"^policy.path: .*policy'"):
        load(folder)


def test_weights_that_would_be_random_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(small_policy(), folder)
    rewrite_weights(folder, lambda name: None if "q_proj" in name else name)
    with pytest.raises(ConfigError, match=r"lacks 2 of the weights .* such as .*q_proj.*random"):
        load(folder)


@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"temperature": "hot"}])
def test_what_can_be_trained_can_be_saved(settings: dict[str, Any], tmp_path: Path) -> None:
    """A trainer changes the tokens of a generation config, and transformers checks what was changed."""
    folder = tmp_path / "policy"
    shutil.copytree(small_policy(), folder)
    rewrite(folder, "generation_config.json", eos_token_id=[2, 5], **settings)
    model = load(folder)[0]
    model.generation_config.pad_token_id = 3
    with pytest.raises(ValueError, match="GenerationConfig is invalid"):
        model.save_pretrained(tmp_path / "saved")
    make_savable(model)
    model.save_pretrained(tmp_path / "saved")
    config = load(tmp_path / "saved")[0].generation_config
    assert (config.eos_token_id, config.pad_token_id, config.temperature) == ([2, 5], 3, None)
