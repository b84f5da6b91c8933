"""Estimate a run's memory per GPU and its hours, from config.json and the run file; nothing is loaded or timed.

Bytes are upper bounds; CUDA, NCCL and fragmentation need another one or two GiB. Times are FLOPs and bytes
read over a share of a data sheet's, within a factor of about two (lab/results/benchmarks.md). Not counted: rewards,
searches, the LLM, exchanging weights and gradients. `cotune plan --steps` measures a run instead.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import cached_folder, only_local, policy_path
from cotune.utils.text import flat, one_line

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MOST_LAYERS = 2000
# bytes of a float32, and of the type that autocast computes in
FULL = 4
HALF = 2
# KV cache buffers grow by half, and are copied when rows are joined.
_CACHE_COPIES = 2.5
# Bytes per token and unit of width that a decoder layer keeps for its backward pass, fitted to
# what autograd saves for Qwen2 and Qwen3 layers under autocast, including gradients.
_PER_HIDDEN = 38
_PER_INTERMEDIATE = 12
_PER_KEY = 4
# The same for a forward pass without a backward pass.
_FED_PER_HIDDEN = 20
_FED_PER_INTERMEDIATE = 8
_DRAW = 22  # bytes per logit while a token is drawn
_TILE = 4096 * 32768  # tokens × vocabulary entries that TRL scores at a time
_WHOLE_LOGIT = 8  # bytes per logit: bfloat16, its gradient, and float32 for the log-probability
_CHECKPOINTING = (
    "gradient_checkpointing",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder.

    Attributes:
        parameters: the number of parameters of the whole model.
        linear: (name, inputs, outputs) of every linear layer except the head.
        layers, hidden, intermediate, query_width, key_width, vocabulary: as in config.json; widths are over
            all heads.
        dtype: the dtype of the weights in the checkpoint.
    """

    parameters: int
    linear: Sequence[tuple[str, int, int]]
    layers: int
    hidden: int
    intermediate: int
    query_width: int
    key_width: int
    vocabulary: int
    dtype: str

    def lora_parameters(self, options: LoraOptions) -> int:
        """Return the number of parameters of the adapters."""
        targets = options.target_modules
        return options.rank * sum(
            inputs + outputs
            for name, inputs, outputs in self.linear
            if isinstance(targets, str) or any(f".{name}".endswith(f".{t}") for t in targets)
        )

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of a token's keys and values in bfloat16."""
        return 2 * HALF * self.layers * self.key_width

    def forward_flops(self, tokens: float) -> float:
        """Return the FLOPs of a forward pass over a row: two a weight and token, and causal attention's."""
        return 2 * self.parameters * tokens + 2 * self.layers * self.query_width * tokens**2


def read_shape(raw: Mapping[str, Any]) -> Shape:
    """Return the shape of a decoder from the content of its config.json.

    Raises:
        ValueError: the estimate does not support the architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    part = raw.get("text_config")
    text = dict(part) if isinstance(part, dict) else dict(raw)
    if "tie_word_embeddings" in raw:
        text.setdefault("tie_word_embeddings", raw["tie_word_embeddings"])
    kind = str(text.get("model_type", "unknown"))
    if text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts"):
        raise ValueError(f"model_type {kind} is a mixture of experts")
    layers = text.get("num_hidden_layers")
    if isinstance(layers, int) and layers > _MOST_LAYERS:  # which would take hours to lay out
        raise ValueError(f"its config.json has {layers:,} layers")
    try:
        if not set(text.get("layer_types") or ()) <= {"full_attention", "sliding_attention"}:
            raise ValueError("layers without attention")
        config: Any = AutoConfig.for_model(**text)
        with torch.device("meta"):
            body = AutoModel.from_config(config)
        names = ("num_attention_heads", "hidden_size", "vocab_size")
        heads, hidden, vocabulary = (int(getattr(config, name)) for name in names)
        head_width = int(getattr(config, "head_dim", None) or hidden // heads)
        key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
        parameters = sum(parameter.numel() for parameter in body.parameters())
        return Shape(
            parameters=parameters + (0 if config.tie_word_embeddings else vocabulary * hidden),
            linear=[
                (name, module.in_features, module.out_features)
                for name, module in body.named_modules()
                if isinstance(module, torch.nn.Linear)
            ],
            layers=int(config.num_hidden_layers),
            hidden=hidden,
            intermediate=int(config.intermediate_size),
            query_width=heads * head_width,
            key_width=key_heads * head_width,
            vocabulary=vocabulary,
            dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32"),
        )
    # transformers raises many kinds of errors for unknown types and missing fields.
    except Exception as error:
        raise ValueError(
            f"transformers cannot build a decoder of model_type {kind} from its config.json "
            f"({type(error).__name__}: {one_line(str(error))[:100]})"
        ) from error


def shape_of(policy: str, ask_hub: bool = False) -> Shape:
    """Return the shape of a policy, given its path; no weights are needed.

    Args:
        ask_hub: fetch its config.json, a few kB, if it is in no folder and not in the hub's cache.

    Raises:
        ValueError: the shape is unknown; the message says why in one line.
    """
    try:
        path = policy_path(policy)
        folder = Path(path) if Path(path).is_dir() else cached_folder(path)
        if folder is None and ask_hub and not only_local(path, weights=False):
            from huggingface_hub import hf_hub_download

            folder = Path(hf_hub_download(path, "config.json")).parent
        if folder is None:
            raise ValueError(f"{policy} is not on this machine")
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (ConfigError, OSError) as error:
        raise ValueError(
            f"{policy} is not on this machine ({one_line(str(error))[:200]})"
        ) from error
    except (ValueError, RecursionError) as error:
        if "is not on this machine" in str(error):
            raise
        raise ValueError(
            f"the config.json of {policy} is not JSON ({type(error).__name__})"
        ) from error
    if not isinstance(raw, dict):
        raise ValueError(f"the config.json of {policy} is not one")
    return read_shape(raw)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a run trains and samples, as its engine reads the run file.

    Attributes:
        gpus: GPUs that train, and sample.
        shards: GPUs that weights, gradients and moments are spread over (FSDP).
        zero: GPUs that only the moments and float32 weights are spread over (ZeRO).
        share: fraction of each GPU's memory that vLLM takes, 0 for vLLM's server; None if the trainer's
            process samples, `rows_per_call` rollouts at a time.
        split: GPUs that each copy of vLLM's weights is split over.
        kept: the part of `share` that vLLM also keeps while the policy is updated.
        dtype: the type that the engine loads weights in; None leaves it to the run file.
        whole_logits: whether a micro-batch's logits exist all at once, not tile by tile.
    """

    gpus: int = 1
    shards: int = 1
    zero: int = 1
    share: float | None = None
    split: int = 1
    kept: float = 0.0
    dtype: str | None = None
    whole_logits: bool = False


@dataclass(frozen=True)
class Memory:
    """Maximum bytes on a GPU.

    Attributes:
        parameters, trained: numbers of parameters; with LoRA only the adapters are trained.
        dtype: the type that the weights are loaded in.
        rows: (bytes while sampling, bytes while training) of each part.
        sampling: the peak while sampling; None if vLLM samples, within its share.
        training: the peak while training on a micro-batch.
    """

    parameters: int
    trained: int
    dtype: str
    rows: Mapping[str, tuple[int, int]]
    sampling: int | None
    training: int


def memory_of(config: RunConfig, shape: Shape, layout: Layout) -> Memory:
    """Estimate the memory of each GPU at its peaks."""
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
    adapters = shape.lora_parameters(lora) if lora else 0
    trained, trained_size = (adapters, FULL) if lora else (shape.parameters, size)
    weights = (shape.parameters * size + adapters * FULL) // layout.shards
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
    layer = _PER_HIDDEN * shape.hidden + _PER_INTERMEDIATE * shape.intermediate
    layer = (layer + _PER_KEY * shape.key_width) * computed // HALF
    activations = tokens * shape.layers * layer
    if checkpoints_activations(config):
        inputs = HALF if layout.shards > 1 else size
        activations = tokens * (shape.layers * shape.hidden * inputs + layer)
    if layout.whole_logits:
        head = tokens * shape.vocabulary * _WHOLE_LOGIT
    else:  # one tile, the hidden states' gradient, and the head's in float32
        head = _TILE * (HALF if casts else FULL) + tokens * shape.hidden * FULL
        head += 0 if lora else shape.vocabulary * shape.hidden * FULL

    sampled = training.rows_per_call if layout.share is None else 0
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


def checkpoints_activations(config: RunConfig) -> bool:
    """Return whether `engine_args` leave gradient checkpointing on, under TRL's name for it or veRL's."""
    args = flat(config.training.engine_args)
    return bool(next((args[name] for name in _CHECKPOINTING if name in args), True))


# ---- time


class Gpu(NamedTuple):
    """A GPU's data sheet: peak FLOP/s in bfloat16 without sparsity, bytes a second, and bytes of memory."""

    flops: float
    bandwidth: float
    memory: float


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu(312e12, 2.039e12, 80e9),  # SXM, 80 GB; NVIDIA's data sheet of June 2021
    "h100": Gpu(989e12, 3.35e12, 80e9),  # SXM; NVIDIA's data sheet has twice the FLOP/s, sparse
    "h200": Gpu(989e12, 4.8e12, 141e9),  # SXM; NVIDIA's data sheet, likewise
    "rtx4090": Gpu(165e12, 1.008e12, 24e9),  # accumulating in float32; NVIDIA's Ada white paper
}
# lab/results/benchmarks.md has the sources.
COMPUTE = 0.3
DECODING = 0.45
"""Shares of a GPU's peak: of the FLOP/s in updates and prompts, of the bandwidth or FLOP/s in decoding."""
_LAUNCH = 0.9e-3  # seconds to launch a layer's kernels of a decoding step in the trainer's process
_LORA_LAUNCHES = 2.5  # times as long, with adapters
_SCHEDULE = 8e-3  # the least seconds of a decoding step of vLLM, which its scheduling takes


def run_seconds(
    config: RunConfig,
    planned: Mapping[str, int],
    shape: Shape,
    layout: Layout,
    gpu: Gpu,
    fill: float = 1.0,
) -> dict[str, float]:
    """Return a run's seconds by purpose of its rollouts, and of its "updates".

    Rollouts of any purpose are assumed to be sampled in batches as large as in training.

    Args:
        planned: the most rollouts by purpose.
        fill: the share of each token limit that a rollout takes.

    Raises:
        ValueError: the time of this layout cannot be projected; the message says why in one line.
    """
    training = config.training
    limits = config.limits
    if training.precision == "fp32" or training.engine_args.get("bf16") is False:
        raise ValueError(
            "it is projected for bfloat16, and training.precision or bf16 asks for float32"
        )
    if layout.share == 0:
        raise ValueError("vLLM's server samples, on GPUs that the run file does not name")
    longest = fill * (limits.prompt_tokens + limits.trajectory_tokens)
    written = fill * min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    context = fill * (limits.prompt_tokens + limits.trajectory_tokens / 2)
    batch = training.questions_per_step * training.group_size

    # Decoding: a step reads the weights and the caches of its rows once, or computes the rows' FLOPs.
    rollouts = math.ceil(batch * layout.split / layout.gpus)  # of a copy of the weights
    rows = training.rows_per_call
    least = shape.layers * _LAUNCH * (_LORA_LAUNCHES if config.policy.lora else 1)
    if layout.share is not None:
        room = layout.share * gpu.memory * layout.split - HALF * shape.parameters
        rows = int(room // (shape.cache_bytes * longest))
        least = _SCHEDULE
    if rows < 1:
        raise ValueError(
            f"vLLM's share, {layout.share:.0%} of {gpu.memory / 1e9:.0f} GB, does not hold the weights "
            "and a rollout"
        )
    rows = min(rollouts, rows)
    read = HALF * shape.parameters + rows * context * shape.cache_bytes
    flops = 2 * shape.parameters * rows
    busy = max(read / gpu.bandwidth, flops / gpu.flops) / layout.split / DECODING
    reading = shape.forward_flops(longest - written) / layout.split / (gpu.flops * COMPUTE)
    seconds = math.ceil(rollouts / rows) * written * max(busy, least) + rollouts * reading
    by_purpose = {purpose: count / batch * seconds for purpose, count in planned.items()}

    # Forward and backward passes, in FLOPs of a forward pass. Frozen weights have no gradient.
    passes = 1 + (1 if config.policy.lora else 2) + checkpoints_activations(config)
    passes += training.mini_batches > 1 or layout.share is not None  # old log-probabilities
    passes += training.kl > 0
    # Groups that were replaced, or rolled out once more, are not trained on.
    trained = 0 if training.frozen else min(planned.get("train", 0), training.steps * batch)
    flops = trained * shape.forward_flops(longest) * passes
    return {**by_purpose, "updates": flops / (layout.gpus * gpu.flops * COMPUTE)}
