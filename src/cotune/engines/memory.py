"""Estimate a run's GPU memory: upper bounds, from the policy's config.json and the run file.

Parameters are counted on the meta device, so no weights are needed. Bytes per GPU:

    weights       parameters × bytes of `policy.dtype`; adapters in float32
    reference     the same again, for a KL term without LoRA
    optimizer     AdamW's two moments of the trained parameters
    gradients     of the trained parameters
    KV cache      rows × longest context × layers × key width, 2.5 times (see `policy.sampling`)
    activations   tokens of a micro-batch × (all layer inputs + one layer's activations)
    logits        a tile of log-probabilities and the head's gradient

Each term is taken at its maximum. CUDA, NCCL and fragmentation need another one or two GiB.
To measure a run instead, use `cotune plan --steps`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.errors import ConfigError
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import cached_folder, check_path, known_path
from cotune.policy.precision import weights_dtype
from cotune.types import KLDistillation, Limits
from cotune.utils.text import flat

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FULL, HALF = 4, 2  # bytes of a float32, and of the type that autocast computes in
# KV cache buffers grow by half, and are copied when rows are joined.
_CACHE_COPIES = 2.5
# Bytes per token and unit of width that a decoder layer keeps for its backward pass, fitted to
# what autograd saves for Qwen2 and Qwen3 layers under autocast, including gradients.
_PER_HIDDEN, _PER_INTERMEDIATE, _PER_KEY = 38, 12, 4
# The same for a forward pass without a backward pass.
_FORWARD_PER_HIDDEN, _FORWARD_PER_INTERMEDIATE = 20, 8
_DRAW = 22  # bytes per logit while a token is drawn
_TEACHER = 18  # bytes per logit: the policy's and the teacher's in float32, a gradient, and what they come from
_TILE_COPIES = 2
_CHECKPOINTING = (
    "gradient_checkpointing",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
)
_LIBRARIES = 3 * 2**29  # bytes of Python with torch, transformers and TRL, and of their threads
_TILE = 4096 * 32768  # tokens × vocabulary entries that TRL scores at a time


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder.

    Attributes:
        parameters: the number of parameters of the whole model.
        linear: (name, inputs, outputs) of every linear layer except the head.
        layers, hidden, intermediate, query_width, key_width, vocabulary: as in config.json; widths
            are over all heads.
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


def read_shape(raw: Mapping[str, Any]) -> Shape:
    """Return the shape of a decoder from the content of its config.json.

    Raises:
        ValueError: the estimate does not support the architecture.
    """
    import torch
    from transformers import AutoConfig, AutoModel

    text = dict(raw.get("text_config") or raw)
    if "tie_word_embeddings" in raw:
        text.setdefault("tie_word_embeddings", raw["tie_word_embeddings"])
    kind = str(text.get("model_type", "unknown"))
    if text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts"):
        raise ValueError(f"model_type {kind} is a mixture of experts")
    if not set(text.get("layer_types") or ()) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"model_type {kind} has layers without attention")
    try:
        config: Any = AutoConfig.for_model(**text)
        with torch.device("meta"):
            body = AutoModel.from_config(config)
        heads, hidden, vocabulary = (
            int(config.num_attention_heads), int(config.hidden_size), int(config.vocab_size),
        )  # fmt: skip
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
    # transformers raises many kinds of errors for unknown model types and missing or invalid
    # fields.
    except Exception as error:
        raise ValueError(
            f"transformers cannot build a decoder of model_type {kind} from its config.json "
            f"({type(error).__name__})"
        ) from error


def find_config(path: str) -> dict[str, Any] | None:
    """Return a policy's config.json, from its folder, its GGUF header or the hub's cache.

    The papers' models are also listed in `known_shapes.json`, so they need not be downloaded.
    Return None for an unknown policy.
    """
    try:
        known = known_path(path)
        if known is None:
            return _config_in_header(path)
    except ConfigError:
        return None
    folder = Path(known)
    if not (folder / "config.json").is_file():
        cached = cached_folder(path)
        if cached is None:
            return _known_config(path)
        folder = cached
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _config_in_header(path: str) -> dict[str, Any] | None:
    """Return the config.json that converting a GGUF file will write, as far as it is read here."""
    from cotune.policy.gguf_conversion import gguf_config, saved_dtype

    file = check_path(path)
    return (
        None
        if file is None
        else {**gguf_config(path, file).to_dict(), "dtype": saved_dtype(path, file)}
    )


def _known_config(name: str) -> dict[str, Any] | None:
    file = resources.files("cotune.engines") / "known_shapes.json"
    owner, _, model = name.partition("/")
    base = model.removesuffix("-Instruct").removesuffix("-Base")
    return (
        json.loads(file.read_text(encoding="utf-8"))["shapes"].get(base)
        if owner == "Qwen"
        else None
    )


def shape_of(policy: str) -> Shape:
    """Return the shape of a policy, given its path.

    Raises:
        ValueError: the shape is unknown; the message says why in one line.
    """
    raw = find_config(policy)
    if raw is None:
        raise ValueError(f"{policy} is not on this machine")
    return read_shape(raw)


@dataclass(frozen=True)
class MemoryEstimate:
    """An engine's maximum memory per GPU in bytes, as `cotune plan` displays it.

    Attributes:
        title: the title of the table.
        rows: (label, bytes while sampling, bytes while training).
        sampling, training: the peaks; None if unknown.
        saved: the size of best/, and of a checkpoint with AdamW's two moments.
        notes: lines to print below the table.
    """

    title: str
    rows: Sequence[tuple[str, int | None, int | None]]
    sampling: int | None
    training: int
    saved: tuple[int, int]
    notes: Sequence[str]


@dataclass(frozen=True)
class Memory:
    """Maximum bytes on a GPU.

    Attributes:
        parameters, trained: numbers of parameters; with LoRA only the adapters are trained.
        weights: the weights, including adapters.
        reference: the initial policy, for the KL term, and a teacher that is not the policy itself.
        optimizer: AdamW's two moments.
        copies: copies of the weights in the forward pass's dtype.
        gradients: the gradients, between the backward pass and the update.
        cache: keys and values of `rows_per_call` rows at their longest; None if vLLM samples.
        sampling_work: everything else at the sampling peak; None if vLLM samples.
        activations: the activations of a micro-batch.
        head: the log-probabilities and their gradient, or the logits that a teacher's loss compares.
        buckets: buffers for exchanging gradients, if several processes train.
    """

    parameters: int
    trained: int
    weights: int
    reference: int
    optimizer: int
    copies: int
    gradients: int
    cache: int | None
    sampling_work: int | None
    activations: int
    head: int
    buckets: int

    @property
    def held(self) -> int:
        """Return the bytes that stay allocated after the first step."""
        return self.weights + self.reference + self.optimizer

    @property
    def saved(self) -> tuple[int, int]:
        """Return the bytes of the trained weights, and of a checkpoint of them."""
        return self.optimizer // 2, self.optimizer // 2 + self.optimizer

    @property
    def sampling(self) -> int | None:
        """Return the peak while sampling rollouts; None if vLLM samples."""
        if self.cache is None or self.sampling_work is None:
            return None
        return self.held + self.copies + self.cache + self.sampling_work

    @property
    def training(self) -> int:
        """Return the peak while training on a micro-batch."""
        return self.held + self.copies + self.gradients + self.activations + self.head

    def estimate(
        self,
        config: RunConfig,
        title: str,
        notes: Sequence[str],
        *,
        spread: str = "",
        copies: str = "copies to compute in bfloat16",
        saved: tuple[int, int] | None = None,
    ) -> MemoryEstimate:
        """Format these bytes as a table.

        Args:
            config: the run file, for the sizes in the labels.
            title, notes: text above and below the table.
            spread: a suffix for the labels of what is sharded over processes.
            copies: the label of `copies`.
            saved: the sizes to show instead of this GPU's own `saved`.
        """
        longest = config.limits.prompt_tokens + config.limits.trajectory_tokens
        rows, micro = config.training.rows_per_call, config.training.micro_batch_size
        copied = 0 if self.sampling is None else self.copies
        return MemoryEstimate(
            title,
            [
                (f"weights{spread}", self.weights, self.weights),
                (f"reference policy{spread}", self.reference, self.reference),
                (f"optimizer (AdamW){spread}", self.optimizer, self.optimizer),
                (copies, copied, self.copies),
                (f"KV cache, {rows} rows of {longest:,} tokens", self.cache, 0),
                ("prompts, attention, draws", self.sampling_work, 0),
                (f"gradients{spread}", 0, self.gradients),
                (f"activations, {micro} rows of {longest:,} tokens", 0, self.activations),
                ("log-probabilities", 0, self.head),
            ],
            self.sampling,
            self.training,
            saved or self.saved,
            notes,
        )


def checkpoints_activations(training: TrainingConfig, default: bool = True) -> bool:
    """Return whether `engine_args` set gradient checkpointing, under TRL's name for it or veRL's."""
    args = flat(training.engine_args)
    found = (args[name] for name in _CHECKPOINTING if name in args)
    return bool(next(found, default))


def memory_of(config: RunConfig, shape: Shape, *, on_cpu: bool = False) -> Memory:
    """Estimate the memory of a single training process from the run file and its `engine_args`.

    Args:
        on_cpu: whether it trains without a GPU: without gradient checkpointing, and as a rule without
            autocast.
    """
    policy, training, limits = config.policy, config.training, config.limits
    fp32 = training.precision == "fp32"
    dtype = weights_dtype(policy, training.precision) if on_cpu or fp32 else policy.dtype
    dtype = shape.dtype if dtype == "auto" else dtype
    size = _BYTES.get(dtype, FULL)
    args = training.engine_args
    if on_cpu:
        mixed = training.precision == "bf16" and policy.lora is None
    else:
        mixed = not (fp32 or args.get("bf16") is False) or bool(args.get("fp16"))
    kl = training.kl > 0 and not config.method.supervised  # fine-tuning has no KL term
    longest = limits.prompt_tokens + limits.trajectory_tokens

    adapters = shape.lora_parameters(policy.lora) if policy.lora else 0
    # peft keeps the adapters of half-precision weights in float32.
    trained, trained_size = (adapters, FULL) if policy.lora else (shape.parameters, size)
    gradients = trained * trained_size

    # Activations of a micro-batch; with checkpointing, those of one layer and the inputs of all.
    tokens = training.micro_batch_size * longest
    layer = (
        _PER_HIDDEN * shape.hidden
        + _PER_INTERMEDIATE * shape.intermediate
        + _PER_KEY * shape.key_width
    )
    if not mixed:
        layer = layer * size // HALF  # the figures are those of autocast
    if checkpoints_activations(training, not on_cpu):
        activations = tokens * (shape.layers * shape.hidden * size + layer)
    else:
        activations = tokens * shape.layers * layer

    # TRL's log-probabilities: one tile, the hidden states' gradient, and the head's in float32.
    head = _TILE * (HALF if mixed else FULL) + tokens * shape.hidden * FULL
    if policy.lora is None:
        head += shape.vocabulary * shape.hidden * FULL

    teacher = config.teacher
    if teacher:  # GRPO's own loss has been freed by then
        compared = training.micro_batch_size * limits.trajectory_tokens * shape.vocabulary
        head = max(head, compared * _TEACHER)
    # An adapter's base serves as the initial policy, but not as an average over steps.
    kept = teacher.teacher if isinstance(teacher, KLDistillation) else "live"
    whole = policy.lora is None
    copied = (kl and whole) + (kept == "base" and whole)
    averaged = (FULL if whole else size) if kept == "ema" else 0  # an average is kept in float32

    cache, work = _sampling(training.rows_per_call, limits, shape, size, mixed)
    vllm = bool(args.get("use_vllm"))
    return Memory(
        parameters=shape.parameters,
        trained=trained,
        weights=shape.parameters * size + adapters * FULL,
        reference=shape.parameters * (size * copied + averaged),
        optimizer=2 * gradients,
        copies=shape.parameters * HALF if mixed and size == FULL else 0,
        gradients=gradients,
        cache=None if vllm else cache,
        sampling_work=None if vllm else work,
        activations=activations,
        head=head,
        buckets=gradients,
    )


def cpu_memory(config: RunConfig, shape: Shape) -> int:
    """Return the most bytes of memory of a process that trains without a GPU.

    Adds to the weights, the optimizer and the gradients the libraries, the checkpoint file, whose pages
    count while they are mapped, and what sampling and training each take, because an allocator may keep
    what it has freed.
    """
    found = memory_of(config, shape, on_cpu=True)
    work = (found.cache or 0) + (found.sampling_work or 0) + found.activations + found.head
    work += _TILE_COPIES * _TILE * FULL  # temporaries, which a GPU's fused kernels do without
    return _LIBRARIES + found.held + found.weights + found.copies + found.gradients + work


def _sampling(rows: int, limits: Limits, shape: Shape, size: int, mixed: bool) -> tuple[int, int]:
    """Return the peak bytes of the cache, and of the forward pass and draw at that time."""
    longest = limits.prompt_tokens + limits.trajectory_tokens
    per_token = shape.layers * shape.key_width * 2 * (HALF if mixed else size)
    cache = int(_CACHE_COPIES * rows * longest * per_token)
    per_fed = _FORWARD_PER_HIDDEN * shape.hidden + _FORWARD_PER_INTERMEDIATE * shape.intermediate
    repeated = 2 * HALF * rows * longest * shape.query_width  # keys and values for every head
    turn = rows * limits.observation_tokens * per_fed + repeated + rows * shape.vocabulary * _DRAW
    # Each row may have its own prompt, whose mask is (L, L), as booleans and as a bias.
    masks = rows * limits.prompt_tokens**2 * (1 + HALF)
    prompts = rows * limits.prompt_tokens * (per_fed + 2 * per_token) + masks
    return cache, max(turn, prompts - cache)
