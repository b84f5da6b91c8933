"""Adapters on a policy and on disk."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from cotune.engines.trl.sharding import restore_weights
from cotune.errors import ConfigError
from cotune.policy.adapters import adapter_base, lora_config, merged, save_weights
from cotune.policy.local_policy import load
from cotune.policy.policy_files import LoraOptions, is_adapter
from cotune.utils import packages
from tests.policy.tiny import tiny_model, tiny_tokenizer

OPTIONS = LoraOptions(rank=4, alpha=8)


def adapted(
    options: LoraOptions = OPTIONS, seed: int = 0, base: str | Path | None = None
) -> PeftModel:
    """A tiny policy with an adapter that does something."""
    model = tiny_model(tiny_tokenizer(), layers=3)
    if base is not None:
        model.config._name_or_path = str(base)
        model.name_or_path = str(base)
    torch.manual_seed(seed)
    peft = get_peft_model(model, lora_config(options, model))
    for name, parameter in peft.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.3)
    return peft.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(4, 12)[None]).logits


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of the policy that `adapted` is made of."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer, layers=3).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    """An adapter's folder with its tokenizer, which names `base`."""
    save_weights(adapted(base=base), tmp_path / "adapter")
    tiny_tokenizer().save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("targets", "adapters"),
    [
        ("all-linear", 3 * 7),
        (("q_proj", "mlp.down_proj"), 3 * 2),
        (("model.layers.1.self_attn.v_proj",), 1),
    ],
)
def test_the_layers_that_are_named_get_adapters(targets: Any, adapters: int) -> None:
    model = adapted(LoraOptions(rank=2, target_modules=targets))
    trainable_names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trainable_names) == 2 * adapters
    assert not [name for name in trainable_names if "lm_head" in name]


# peft matches whole names, and the head has none.
@pytest.mark.parametrize("name", ["proj", "lm_head", "embed_tokens"])
def test_a_layer_that_cannot_have_one_is_named(name: str) -> None:
    options = LoraOptions(target_modules=("v_proj", name))
    with pytest.raises(ConfigError, match=f"target_modules: '{name}' is none of the linear layers"):
        lora_config(options, tiny_model(tiny_tokenizer(), layers=3))


def test_without_peft_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(packages, "installed", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^policy.lora needs peft, .*pip install 'cotune\[peft\]'"
    ):
        lora_config(OPTIONS, None)
    with pytest.raises(ConfigError, match=r"^policy '.*adapter' needs peft"):
        load(folder)


def test_an_adapters_folder_holds_the_adapter_alone(folder: Path, base: Path) -> None:
    assert is_adapter(folder)
    assert not is_adapter(base)
    assert not is_adapter("Qwen/Qwen3-0.6B")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        p.name for p in folder.iterdir()
    }
    assert not {"model.safetensors", "README.md"} & {p.name for p in folder.iterdir()}
    weights = load_file(folder / "adapter_model.safetensors")
    assert len(weights) == 2 * 3 * 7
    assert all(".lora_" in name for name in weights)
    assert adapter_base(folder) == str(base)


def test_an_adapter_is_loaded_on_the_base_that_it_names(
    folder: Path, base: Path, tmp_path: Path
) -> None:
    model, tokenizer = load(folder)
    assert isinstance(model, PeftModel)
    assert tokenizer.chat_template == tiny_tokenizer().chat_template
    torch.testing.assert_close(logits(model), logits(adapted()))
    plain = tiny_model(tiny_tokenizer(), layers=3)
    assert not torch.allclose(logits(model), logits(plain), atol=1e-2)
    assert merged(plain) is plain
    # Another base may be given.
    base.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match=r"cannot load '.*base', the base of '.*adapter': "):
        load(folder)
    model, _ = load(folder, base=tmp_path / "moved")
    torch.testing.assert_close(logits(model), logits(adapted()))
    (tmp_path / "moved").rename(base)
    # Without a tokenizer it has its base's.
    tiny_tokenizer().save_pretrained(base)
    for file in folder.iterdir():
        if not file.name.startswith("adapter_"):
            file.unlink()
    model, tokenizer = load(folder)
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    torch.testing.assert_close(logits(model), logits(adapted()))


def test_a_base_of_another_shape_is_refused(folder: Path, base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    wider = Qwen3Config(**{**config, "intermediate_size": 48})
    Qwen3ForCausalLM(wider).save_pretrained(base)
    with pytest.raises(ConfigError, match=r"cannot load '.*adapter', an adapter of '.*base': "):
        load(folder)


@pytest.mark.parametrize("content", ["[]", "no JSON", '{"base_model_name_or_path": null}'])
def test_an_adapter_that_names_no_base_is_refused(folder: Path, content: str) -> None:
    (folder / "adapter_config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"adapter_config.json: names no base"):
        load(folder)


def test_weights_go_back_into_the_policy_in_place(folder: Path, base: Path) -> None:
    model = adapted(seed=5)
    parameters = dict(model.named_parameters())
    assert not torch.allclose(logits(model), logits(adapted()), atol=1e-2)
    restore_weights(model, folder)
    torch.testing.assert_close(logits(model), logits(adapted()), atol=0, rtol=0)
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(p is parameters[name] for name, p in model.named_parameters())
    plain = tiny_model(tiny_tokenizer(), seed=3, layers=3)
    restore_weights(plain, base)
    torch.testing.assert_close(logits(plain), logits(tiny_model(tiny_tokenizer(), layers=3)))
    # Another adapter's weights are not taken.
    model = adapted(LoraOptions(rank=4, alpha=8, target_modules=("q_proj",)))
    with pytest.raises(ConfigError, match=r"holds weights of another adapter, such as base_model"):
        restore_weights(model, folder)


def test_adapters_of_other_kinds_go_back_too(tmp_path: Path) -> None:
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"], use_dora=True)
    models = [get_peft_model(tiny_model(tiny_tokenizer(), layers=3), config) for _ in range(2)]
    for name, weight in models[0].named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weight)
    models[0].save_pretrained(tmp_path)
    restore_weights(models[1], tmp_path)
    torch.testing.assert_close(logits(models[1]), logits(models[0]), atol=0, rtol=0)
