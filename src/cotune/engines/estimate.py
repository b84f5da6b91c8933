"""Estimate a run's memory per GPU from config.json and the run file; no weights are loaded.

Bytes are upper bounds for dense decoders: what autograd saves is 0.4 to 1 of the activations here. CUDA, NCCL and
fragmentation need another one or two GiB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.policy_files import LoraOptions, PolicyConfig, cached_folder, policy_path
from cotune.utils.text import flat, one_line

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# bytes of a float32, and of the type that autocast computes in
FULL = 4
HALF = 2
# KV cache buffers grow by half, and are copied when rows are joined.
_CACHE_COPIES = 2.5
# Bytes per token and unit of width that a decoder layer keeps for its backward pass, fitted to
# what autograd saves for Qwen2 and Qwen3 layers under autocast, including gradients.
_PER_HIDDEN = 40
_PER_INTERMEDIATE = 12
# The same for a forward pass without a backward pass.
_FED_PER_HIDDEN = 20
_FED_PER_INTERMEDIATE = 8
_DRAW = 22  # bytes per logit while a token is drawn
_TILE = 4096 * 32768 * FULL  # the logits that TRL computes at a time
_WHOLE_LOGIT = 8  # bytes per logit: bfloat16, its gradient, and float32 for the log-probability
# The names of gradient checkpointing in `engine_args`, TRL's and veRL's; it is on unless one turns it off.
_CHECKPOINTING = ("gradient_checkpointing", "actor_rollout_ref.model.enable_gradient_checkpointing")


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder.

    Attributes:
        parameters, adapters: numbers of parameters of the whole model, and of its LoRA adapters (0 without).
        key_width: the width of a token's keys, over all heads.
        dtype: of the weights in the checkpoint.
    """

    parameters: int
    adapters: int
    layers: int
    hidden: int
    intermediate: int
    key_width: int
    vocabulary: int
    dtype: str


def read_shape(policy: "PretrainedConfig", lora: LoraOptions | None = None) -> Shape:
    """Return the shape of a decoder from its config.json.

    Raises ValueError: the estimate does not support the architecture; the message says why in one line.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config: Any = policy.get_text_config()
    kind = config.model_type
    if any(getattr(config, f"{name}_experts", None) for name in ("num", "num_local", "n_routed")):
        raise ValueError(f"model_type {kind} is a mixture of experts")
    layer_types = getattr(config, "layer_types", None) or ()
    if not {"full_attention", "sliding_attention"}.issuperset(layer_types):
        raise ValueError(f"model_type {kind} has layers without attention")
    # transformers raises many kinds of errors for unknown types and missing fields.
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
        heads = config.num_attention_heads
        head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Shape(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            adapters=_count_adapters(model, lora) if lora else 0,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            key_width=(getattr(config, "num_key_value_heads", None) or heads) * head_width,
            vocabulary=config.vocab_size,
            dtype=str(config.dtype or "float32").removeprefix("torch."),
        )
    except Exception as error:
        raise ValueError(
            f"transformers cannot build a decoder of model_type {kind} from its config.json "
            f"({type(error).__name__}: {one_line(str(error))[:100]})"
        ) from error


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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a run trains and samples, as its engine reads the run file.

    Attributes:
        shards: GPUs that weights, gradients and moments are spread over (FSDP).
        zero: GPUs that only the moments and float32 weights are spread over (ZeRO).
        share: fraction of each GPU's memory that vLLM takes, 0 for vLLM's server; None if the trainer's
            process samples, `rows_per_call` rollouts at a time.
        dtype: the type that the engine loads weights in; None leaves it to the run file.
        whole_logits: whether a micro-batch's logits exist all at once, not tile by tile.
    """

    gpus: int = 1
    shards: int = 1
    zero: int = 1
    share: float | None = None
    dtype: str | None = None
    whole_logits: bool = False


@dataclass(frozen=True)
class Memory:
    """Maximum bytes on a GPU."""

    parameters: int
    trained: int
    """Number of parameters; with LoRA only the adapters'."""
    dtype: str
    """The type that the weights are loaded in."""
    rows: Mapping[str, tuple[int, int]]
    """(bytes while sampling, bytes while training) of each part."""
    sampling: int | None
    """The peak while sampling; None if vLLM samples, within its share."""
    training: int
    """The peak while training on a micro-batch."""


def memory_of(
    config: RunConfig, shape: Shape, layout: Layout, rows_per_call: int | None = None
) -> Memory:
    """Estimate the memory of each GPU at its peaks.

    Args:
        rows_per_call: the most rollouts that are sampled together; None for the run file's.
    """
    training = config.training
    limits = config.limits
    lora = config.policy.lora
    exact = training.precision == "fp32"
    args = training.engine_args
    casts = not (exact or args.get("bf16") is False) or bool(args.get("fp16"))
    dtype = layout.dtype or config.policy.dtype
    if dtype == "auto":
        dtype = "float32" if exact else shape.dtype
    size = HALF if layout.zero > 1 else _BYTES.get(dtype, FULL)
    computed = HALF if casts else size

    # peft keeps the adapters of half-precision weights in float32.
    trained, trained_size = (shape.adapters, FULL) if lora else (shape.parameters, size)
    weights = (shape.parameters * size + shape.adapters * FULL) // layout.shards
    reference = shape.parameters * size // layout.shards if training.kl > 0 and not lora else 0
    copies = shape.parameters * HALF if casts and size == FULL else 0
    gradients = trained * trained_size // layout.shards
    if layout.gpus > 1 and layout.shards == layout.zero == 1:
        gradients *= 2  # DDP's buckets
    # AdamW's two moments; ZeRO also spreads the weights in float32.
    moments = 2 * trained * trained_size // layout.shards
    if layout.zero > 1:
        moments = 3 * FULL * trained // layout.zero

    longest = limits.prompt_tokens + limits.trajectory_tokens
    tokens = training.micro_batch_size * longest
    layer = (_PER_HIDDEN * shape.hidden + _PER_INTERMEDIATE * shape.intermediate) * computed // HALF
    activations = tokens * shape.layers * layer
    flat_args = flat(args)
    if all(flat_args.get(name, True) for name in _CHECKPOINTING):
        activations = tokens * (shape.layers * shape.hidden * size + layer)
    # A tile of logits, and the head's gradient in float32.
    tile = _TILE + (0 if lora else shape.vocabulary * shape.hidden * FULL)
    head = tokens * shape.vocabulary * _WHOLE_LOGIT if layout.whole_logits else tile

    sampled = (rows_per_call or training.rows_per_call) if layout.share is None else 0
    per_token = shape.layers * shape.key_width * 2 * computed
    cache = int(_CACHE_COPIES * sampled * longest * per_token)
    # Prompts are fed before the cache has grown, and a layer's values of all rows are there at once.
    fed = _FED_PER_HIDDEN * shape.hidden + _FED_PER_INTERMEDIATE * shape.intermediate
    prompts = max(0, sampled * limits.prompt_tokens * (fed + 2 * per_token) - cache)
    # Each row may have a mask of its own, as booleans and as a bias.
    draws = sampled * (limits.prompt_tokens**2 * (1 + HALF) + shape.vocabulary * _DRAW)

    rows = {
        "weights": (weights, weights),
        "reference policy": (reference, reference),
        "optimizer (AdamW)": (moments, moments),
        "copies to compute in bfloat16": (copies if layout.share is None else 0, copies),
        f"KV cache, {sampled} rows of {longest:,} tokens": (cache, 0),
        "prompts, masks, draws": (prompts + draws, 0),
        "gradients": (0, gradients),
        f"activations, {training.micro_batch_size} rows of {longest:,} tokens": (0, activations),
        "log-probabilities": (0, head),
    }
    sampling, peak = (sum(column) for column in zip(*rows.values(), strict=True))
    return Memory(
        parameters=shape.parameters,
        trained=trained,
        dtype=dtype,
        rows=rows,
        sampling=sampling if layout.share is None else None,
        training=peak,
    )
