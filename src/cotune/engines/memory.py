"""How much memory a run needs of a GPU at most, reckoned from its policy's config.json.

Counted are the tensors that grow with the policy, the batch or the limits, each at its longest; CUDA
itself, NCCL and fragmentation are not, and take one or two GiB besides.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.policy.folder import cached_folder
from cotune.policy.options import LoraOptions
from cotune.policy.paths import policy_path

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FULL = 4  # bytes of a float32
_HALF = 2  # bytes of what autocast computes in
# The KV cache of `engines.kv_rows`: buffers grow by half, and are copied where rows come together.
_CACHE_COPIES = 2.5
# Bytes a token of a decoder layer holds for its backward pass, by width; fitted to what autograd
# saves of Qwen2 and Qwen3 layers under autocast, with the gradients that meet it.
_PER_HIDDEN, _PER_INTERMEDIATE, _PER_KEY = 38, 12, 4
# The same without a backward pass.
_FORWARD_PER_HIDDEN, _FORWARD_PER_INTERMEDIATE = 20, 8
_DRAW = 30  # bytes a logit while a token is drawn from all of them in float64
# TRL scores tokens in tiles of this many tokens and entries of the vocabulary.
_TILE = 4096 * 32768


@dataclass(frozen=True)
class Shape:
    """A dense decoder, by its config.json.

    Attributes:
        dtype: of the weights in the checkpoint.
        qkv_bias, output_bias: whether attention's linear layers have biases.
        head_norms: whether queries and keys are normalized by head.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    dtype: str
    qkv_bias: bool
    output_bias: bool
    head_norms: bool

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def key_width(self) -> int:
        return self.key_heads * self.head_width

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """The linear layers of a decoder layer: width of what goes in and of what comes out."""
        hidden, keys, inner = self.hidden, self.key_width, self.intermediate
        return {
            "q_proj": (hidden, self.query_width),
            "k_proj": (hidden, keys),
            "v_proj": (hidden, keys),
            "o_proj": (self.query_width, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    @property
    def parameters(self) -> int:
        biases = self.qkv_bias * (self.query_width + 2 * self.key_width)
        biases += self.output_bias * self.hidden
        norms = 2 * self.hidden + self.head_norms * 2 * self.head_width
        layer = sum(a * b for a, b in self.linear.values()) + biases + norms
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    def lora_parameters(self, options: LoraOptions) -> int:
        """Of the adapters on every decoder layer."""
        targets = options.target_modules
        widths = [
            a + b
            for name, (a, b) in self.linear.items()
            if targets == "all-linear" or any(_names(target, name) for target in targets)
        ]
        return self.layers * options.rank * sum(widths)


def _names(target: str, layer: str) -> bool:
    return target == layer or target.endswith(f".{layer}")


def read_shape(config: Mapping[str, Any]) -> Shape:
    """A decoder's shape from its config.json.

    Raises:
        ValueError: says what about it is not known here.
    """
    text = config.get("text_config") or config
    kind = str(text.get("model_type", "unknown"))
    if text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts"):
        raise ValueError(f"model_type {kind} is a mixture of experts")
    if not set(text.get("layer_types") or ()) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"model_type {kind} has layers without attention")
    try:
        heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
        return Shape(
            layers=int(text["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(text["intermediate_size"]),
            heads=heads,
            key_heads=int(text.get("num_key_value_heads") or heads),
            head_width=int(text.get("head_dim") or hidden // heads),
            vocabulary=int(text["vocab_size"]),
            tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or "float32"),
            qkv_bias=kind == "qwen2" or bool(text.get("attention_bias")),
            output_bias=kind != "qwen2" and bool(text.get("attention_bias")),
            head_norms=kind == "qwen3",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"model_type {kind} has another config.json than decoders have") from error


def find_config(path: str) -> dict[str, Any] | None:
    """config.json of a policy's folder, or of a Hugging Face name in this machine's cache.

    Of some models that are not here, what is shipped of it (`known_shapes.json`).
    """
    try:
        file = Path(policy_path(path)) / "config.json"
    except ConfigError:
        return None
    if not file.is_file():
        cached = cached_folder(path)
        if cached is None:
            return known_config(path)
        file = cached / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def known_config(name: str) -> dict[str, Any] | None:
    """The architecture of a model of the papers by its name on the hub, however it was tuned."""
    file = resources.files("cotune.engines") / "known_shapes.json"
    shapes: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["shapes"]
    owner, _, model = name.partition("/")
    return (
        shapes.get(model.removesuffix("-Instruct").removesuffix("-Base"))
        if owner == "Qwen"
        else None
    )


@dataclass(frozen=True)
class MemoryEstimate:
    """What an engine needs of each GPU at most, in bytes, as `cotune plan` shows it.

    Attributes:
        title: of the table.
        rows: what takes memory, and how much of it while sampling and while training.
        sampling, training: the peaks; None if not known here.
        saved: trained weights, and a checkpoint of them with AdamW's two moments.
        notes: what to say below the table, a line each.
    """

    title: str
    rows: Sequence[tuple[str, int | None, int | None]]
    sampling: int | None
    training: int
    saved: tuple[int, int]
    notes: Sequence[str]


def shape_of(config: RunConfig) -> Shape:
    """Return the shape of a run file's policy.

    Raises:
        ValueError: says in a line why it is not known.
    """
    raw = find_config(config.policy.path)
    if raw is None:
        raise ValueError(f"{config.policy.path} is not on this machine")
    return read_shape(raw)


@dataclass(frozen=True)
class Memory:
    """Bytes on a GPU, at most.

    Attributes:
        parameters, trained: counts; of LoRA the adapters alone are trained.
        weights: with the adapters.
        reference: the untrained policy beside it, for the KL term.
        optimizer: AdamW's two moments.
        copies: of float32 weights in what autocast computes in, during a forward pass.
        gradients: between backward pass and update.
        cache: keys and values of `rows_per_call` rows at their longest; None where vLLM samples.
        sampling_work: what else sampling needs, at its peak; None where vLLM samples.
        activations: of a micro-batch.
        head: log-probabilities and their gradient.
        buckets: of DDP, where several processes train.
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
        """What is there all the time after the first step."""
        return self.weights + self.reference + self.optimizer

    @property
    def saved(self) -> tuple[int, int]:
        """Bytes of the trained weights, and of a checkpoint of them."""
        return self.optimizer // 2, self.optimizer // 2 + self.optimizer

    @property
    def sampling(self) -> int | None:
        """The peak while rollouts are sampled; None where vLLM samples."""
        if self.cache is None or self.sampling_work is None:
            return None
        return self.held + self.copies + self.cache + self.sampling_work

    @property
    def training(self) -> int:
        """The peak while a micro-batch is trained on."""
        return self.held + self.copies + self.gradients + self.activations + self.head


def memory_of(config: RunConfig, shape: Shape) -> Memory:
    """What a run file needs on a GPU; `training.engine_args` is heeded in what it says of memory."""
    policy, training, limits = config.policy, config.training, config.limits
    dtype = shape.dtype if policy.dtype == "auto" else policy.dtype
    size = _BYTES.get(dtype, _FULL)
    adapters = shape.lora_parameters(policy.lora) if policy.lora else 0
    # peft keeps the adapters of half-precision weights in float32.
    trained, trained_size = (adapters, _FULL) if policy.lora else (shape.parameters, size)
    args = training.engine_args
    mixed = args.get("bf16") is not False or bool(args.get("fp16"))
    gradients = trained * trained_size
    tokens = training.micro_batch_size * (limits.prompt_tokens + limits.trajectory_tokens)
    # Supervised fine-tuning has no KL term.
    kl = training.kl > 0 and not config.method.supervised
    own_reference = kl and policy.lora is None
    cache, work = _sampling(config, shape, size, mixed)
    vllm = bool(args.get("use_vllm"))
    return Memory(
        parameters=shape.parameters,
        trained=trained,
        weights=shape.parameters * size + adapters * _FULL,
        reference=shape.parameters * size if own_reference else 0,
        optimizer=2 * gradients,
        copies=shape.parameters * _HALF if mixed and size == _FULL else 0,
        gradients=gradients,
        cache=None if vllm else cache,
        sampling_work=None if vllm else work,
        activations=_activations(
            shape, tokens, size, bool(args.get("gradient_checkpointing", True))
        ),
        head=_head(shape, tokens, mixed, full_weights=policy.lora is None),
        buckets=gradients,
    )


def _sampling(config: RunConfig, shape: Shape, size: int, mixed: bool) -> tuple[int, int]:
    """The cache at its peak, and what a forward pass and a draw need besides."""
    limits, rows = config.limits, config.training.rows_per_call
    # Under autocast the values are its type's, but the keys, once rotated, the weights'.
    pair = size + (_HALF if mixed else size)
    per_token = shape.layers * shape.key_width * pair
    longest = limits.prompt_tokens + limits.trajectory_tokens
    cache = int(_CACHE_COPIES * rows * longest * per_token)
    per_fed = _FORWARD_PER_HIDDEN * shape.hidden + _FORWARD_PER_INTERMEDIATE * shape.intermediate
    spread = 2 * _HALF * rows * longest * shape.query_width  # keys and values over all heads
    turn = rows * limits.observation_tokens * per_fed + spread + rows * shape.vocabulary * _DRAW
    # Every row may have a prompt of its own; its mask is (L, L), as booleans and as a bias.
    masks = rows * limits.prompt_tokens**2 * (1 + _HALF)
    prompts = rows * limits.prompt_tokens * (per_fed + 2 * per_token) + masks
    return cache, max(turn, prompts - cache)


def _activations(shape: Shape, tokens: int, size: int, checkpointed: bool) -> int:
    """What the backward pass of a micro-batch needs; checkpointed: a layer's, and all inputs'."""
    layer = (
        _PER_HIDDEN * shape.hidden
        + _PER_INTERMEDIATE * shape.intermediate
        + _PER_KEY * shape.key_width
    )
    if checkpointed:
        return tokens * (shape.layers * shape.hidden * size + layer)
    return tokens * shape.layers * layer


def _head(shape: Shape, tokens: int, mixed: bool, *, full_weights: bool) -> int:
    """TRL's log-probabilities: a tile, the hidden states' gradient, and the head's in float32."""
    tile = _TILE * (_HALF if mixed else _FULL)
    hidden = tokens * shape.hidden * _FULL
    return tile + hidden + (shape.vocabulary * shape.hidden * _FULL if full_weights else 0)
