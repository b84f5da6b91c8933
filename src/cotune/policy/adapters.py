"""LoRA adapters, and saving and loading a policy's weights, whole or as an adapter.

An adapter folder holds `adapter_config.json`, which names the base, and the adapter's weights.
`peft` is an extra and is imported only when an adapter is used.
"""

import json
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.pytorch_utils import Conv1D

from cotune.errors import ConfigError
from cotune.policy.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LoraOptions
from cotune.utils.packages import need


def lora_config(options: LoraOptions, model: Any = None) -> Any:
    """Return a `peft.LoraConfig`; ConfigError if peft is missing, or the policy, if given, has no such layers."""
    need("peft", "policy.lora")
    from peft import LoraConfig

    targets = options.target_modules
    if model is not None and not isinstance(targets, str):
        head = model.get_output_embeddings()
        linear = [
            f".{path}"
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
        ]
        for name in targets:
            # peft matches the end of a path, and passes over a misspelt name beside others that match.
            if not any(path.endswith(f".{name}") for path in linear):
                raise ConfigError(
                    f"policy.lora.target_modules: {name!r} is none of the linear layers that can have an adapter"
                )
    return LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


def adapter_base(path: str | Path) -> str:
    """Return the base that an adapter folder names: a Hugging Face name or folder; ConfigError if it names none."""
    file = Path(path) / ADAPTER_CONFIG
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    if not base or not isinstance(base, str):
        raise ConfigError(f"{file}: names no base; expected base_model_name_or_path")
    return base


def merged(model: Any) -> Any:
    """Merge an adapter into its base's weights, in their type; a policy without an adapter is returned unchanged.

    The argument is consumed. ValueError if the merged weights are not all finite numbers.
    """
    return model.merge_and_unload(safe_merge=True) if is_peft_model(model) else model


def trained_dtype(model: Any) -> str:
    """Return the type of a policy's trained weights, such as "bfloat16"; adapters are float32."""
    return "float32" if is_peft_model(model) else str(model.dtype).removeprefix("torch.")


def make_savable(model: Any) -> None:
    """Drop the sampling settings of a policy's generation_config.json if transformers would refuse to save them.

    Rollouts use none of them.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    try:
        settings.validate(strict=True)
    except (TypeError, ValueError):
        model.generation_config = GenerationConfig(
            bos_token_id=settings.bos_token_id,
            eos_token_id=settings.eos_token_id,
            pad_token_id=settings.pad_token_id,
        )


def save_weights(model: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Save the trained part of a policy: its weights, or its active adapter.

    Args:
        weights: by name, for a policy that is sharded over processes.
    """
    if not is_peft_model(model):
        model.save_pretrained(folder, state_dict=weights)
        return
    # Only linear layers have adapters here; "auto" would ask the hub whether embeddings grew.
    model.save_pretrained(
        folder,
        selected_adapters=[model.active_adapter],
        save_embedding_layers=False,
        state_dict=weights,
    )
    (folder / "README.md").unlink(missing_ok=True)  # an empty template


def write_adapter(
    folder: Path, weights: dict[str, torch.Tensor], options: LoraOptions, base: str
) -> None:
    """Write the folder of a LoRA adapter that no model here has.

    Args:
        weights: the adapter's, by the names that PEFT gives them in a file.
        base: the base's Hugging Face name or folder.
    """
    config = lora_config(options)
    if isinstance(options.target_modules, str):
        config.target_modules = {name.split(".")[-3] for name in weights}
    config.base_model_name_or_path = base
    config.inference_mode = True
    folder.mkdir(parents=True)
    config.save_pretrained(str(folder))
    save_file(weights, folder / ADAPTER_WEIGHTS, {"format": "pt"})


def read_weights(model: Any, folder: Path) -> dict[str, Any]:
    """Return what `save_weights` or a trainer's checkpoint saved of a policy, by its names, on the CPU.

    Raises:
        ConfigError: the folder holds the weights of another adapter.
    """
    if not is_peft_model(model):
        saved_model = cast(Any, AutoModelForCausalLM.from_pretrained(folder))
        return dict(saved_model.state_dict())
    from peft import get_peft_model_state_dict

    adapter = model.active_adapter
    file = (folder if adapter == "default" else folder / adapter) / ADAPTER_WEIGHTS
    # Every kind of adapter has its own rule for the names under which peft saves its weights.
    own_names: Any = {name: name for name in model.state_dict()}
    saved = get_peft_model_state_dict(model, own_names, adapter, save_embedding_layers=True)
    names = cast("dict[str, str]", saved)
    weights = load_file(file)
    if foreign := sorted(set(weights) - set(names)):
        raise ConfigError(
            f"{file}: holds weights of another adapter, such as {foreign[0]}; expected those of policy.lora"
        )
    return {names[name]: weight for name, weight in weights.items()}
