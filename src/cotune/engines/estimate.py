"""Estimate what training holds in memory, from config.json and the run file; no weights are loaded.

Activations and the KV cache come on top: `cotune plan --steps` measures the peak.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.policy_files import LoraOptions, PolicyConfig, cached_folder, policy_path
from cotune.utils.text import one_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Shape:
    """The size of a policy.

    Attributes:
        parameters, adapters: numbers of parameters of the whole model, and of its LoRA adapters (0 without).
        dtype: of the weights in the checkpoint.
    """

    parameters: int
    adapters: int
    dtype: str


def read_shape(policy: "PretrainedConfig", lora: LoraOptions | None = None) -> Shape:
    """Return the shape of a policy from its config.json.

    Raises ValueError: transformers cannot build the architecture; the message says why in one line.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config: Any = policy.get_text_config()
    # transformers raises many kinds of errors for unknown types and missing fields.
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise ValueError(
            f"transformers cannot build a decoder of model_type {config.model_type} from its config.json "
            f"({type(error).__name__}: {one_line(str(error))[:100]})"
        ) from error
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapters=_count_adapters(model, lora) if lora else 0,
        dtype=str(config.dtype or "float32").removeprefix("torch."),
    )


def _count_adapters(model: Any, options: LoraOptions) -> int:
    """Return the number of parameters of LoRA adapters; the head has none."""
    import torch

    targets = options.target_modules
    return options.rank * sum(
        module.in_features + module.out_features
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module is not model.get_output_embeddings()
        and (isinstance(targets, str) or any(f".{name}".endswith(f".{t}") for t in targets))
    )


def shape_of(options: PolicyConfig) -> Shape:
    """Return the shape of a policy; the hub is asked for a config.json that is not here. Raises as `read_shape`."""
    from cotune.policy.local_policy import load_architecture

    try:
        path = policy_path(options.path)
        return read_shape(load_architecture(str(cached_folder(path) or path)), options.lora)
    except ConfigError as error:
        raise ValueError(one_line(str(error))) from error


@dataclass(frozen=True)
class Memory:
    """What one copy of the policy holds while it is trained.

    Attributes:
        trained: number of parameters; with LoRA only the adapters'.
        dtype: the type that the weights are loaded in.
        parts: bytes of each part.
    """

    trained: int
    dtype: str
    parts: Mapping[str, int]


def memory_of(config: RunConfig, shape: Shape, dtype: str) -> Memory:
    """Estimate the memory of a run.

    Args:
        dtype: the type that the engine loads weights in; "auto" is the checkpoint's.
    """
    lora = config.policy.lora
    dtype = shape.dtype if dtype == "auto" else dtype
    size = _BYTES.get(dtype, _FLOAT32)
    # peft keeps the adapters of half-precision weights in float32.
    trained, trained_size = (shape.adapters, _FLOAT32) if lora else (shape.parameters, size)
    # With LoRA the reference is the base.
    has_reference = config.training.kl > 0 and lora is None
    parts = {
        "weights": shape.parameters * size + shape.adapters * _FLOAT32,
        "reference policy": shape.parameters * size if has_reference else 0,
        "gradients": trained * trained_size,
        "AdamW's moments": 2 * trained * trained_size,
    }
    return Memory(trained, dtype, parts)
