"""Project how long a run takes on GPUs, from the policy's shape and the GPU's data sheet; nothing is timed.

    a forward pass   2 FLOPs per weight and token, and 2 × layers × query width × tokens² of attention
    an update        forward and backward (2 forward passes; 1 with LoRA), the recomputation of gradient
                     checkpointing, and the passes for the old and the reference log-probabilities
    a decoding step  the weights and the caches of the rows read once, or the rows' FLOPs if these take longer
    a prompt         a forward pass over the prompt and the observations

Each is divided by a utilisation, once by a low and once by a high one. A decoding step takes at least
the time that the CPU needs for it: to launch the kernels in the trainer's own process, or to schedule the
rows in vLLM. Not counted: rewards, searches, the LLM, exchanging weights and gradients, checkpoints.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cotune.config.run_file import RunConfig, TrainingConfig
from cotune.engines.memory import HALF, Shape, checkpoints_activations
from cotune.types import Limits


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet.

    Attributes:
        flops: peak FLOP/s of bfloat16 tensor cores, without sparsity.
        bandwidth: bytes of memory a second.
        memory: bytes.
    """

    flops: float
    bandwidth: float
    memory: float


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu(312e12, 2.039e12, 80e9),  # SXM, 80 GB; NVIDIA's data sheet of June 2021
    "h100": Gpu(989e12, 3.35e12, 80e9),  # SXM; NVIDIA's data sheet has twice the FLOP/s, sparse
    "h200": Gpu(989e12, 4.8e12, 141e9),  # SXM; NVIDIA's data sheet, likewise
    "rtx4090": Gpu(165e12, 1.008e12, 24e9),  # accumulating in float32; NVIDIA's Ada white paper
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The utilisation of a GPU by a run.

    Attributes:
        compute: share of the peak FLOP/s in updates and prompts.
        decoding: share of the bandwidth, or of the peak FLOP/s, in decoding.
        launch: seconds to launch the kernels of a layer of a decoding step in the trainer's process.
        schedule: the least seconds of a decoding step of vLLM, which its scheduling takes.
    """

    compute: float
    decoding: float
    launch: float
    schedule: float


# Llama 3's training reached 38 to 43 % of the FLOP/s (arXiv 2407.21783); small micro-batches of uneven
# rows reach less. A compiled Llama-7B decodes one row at 69 % of the bandwidth (github.com/pytorch-labs/
# gpt-fast); a server schedules many rows of changing length. An eager one took 1/25.5 s for a token of 32
# layers, bound by launches (pytorch.org/blog/accelerating-generative-ai-2); faster CPUs take less. The
# lower ends, and 60 % of the bandwidth, are ours. Measured on a shared H200 (docs/results/benchmarks.md): vLLM
# took 10.6 ms for a step of 128 rows of 0.5B, whose weights and caches it could read in 0.4 ms; launches took
# 1.1 ms a layer, and 2.7 ms with adapters.
SLOW = Efficiency(0.2, 0.3, 1.2e-3, 11e-3)
FAST = Efficiency(0.4, 0.6, 0.6e-3, 5e-3)
LORA_LAUNCHES = 2.5
"""How many times as long the launches of a layer take with adapters."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The GPUs that a run trains and samples on.

    Attributes:
        gpus: GPUs that train, and sample.
        share: fraction of each GPU's memory that vLLM takes; None if the trainer's process samples,
            `rows_per_call` rollouts at a time.
        split: GPUs that each copy of vLLM's weights is split over.
        kept: the part of `share` that vLLM also keeps while the policy is updated.
    """

    gpus: int
    share: float | None = None
    split: int = 1
    kept: float = 0.0


def weights_used(shape: Shape) -> int:
    """Return how many weights a token is multiplied by: all but an untied embedding's."""
    return sum(inputs * outputs for _, inputs, outputs in shape.linear) + (
        shape.vocabulary * shape.hidden
    )


def forward_flops(shape: Shape, tokens: float) -> float:
    """Return the FLOPs of a forward pass over a row, causal attention included."""
    return 2 * weights_used(shape) * tokens + 2 * shape.layers * shape.query_width * tokens * tokens


def update_passes(config: RunConfig, layout: Layout) -> int:
    """Return how many forward passes an update costs in FLOPs."""
    training = config.training
    backward = 1 if config.policy.lora else 2  # frozen weights have no gradient
    recomputed = checkpoints_activations(training)
    old = training.mini_batches > 1 or layout.share is not None
    # A teacher's forward pass, and the policy's passes once more for its loss.
    taught = 2 + backward + recomputed if config.teacher else 0
    return 1 + backward + recomputed + old + (training.kl > 0) + taught


def decode_seconds(
    shape: Shape,
    gpu: Gpu,
    use: Efficiency,
    layout: Layout,
    rows: float,
    context: float,
    lora: bool = False,
) -> float:
    """Return the seconds of a decoding step: a token for each row, after a given number of tokens."""
    cached = 2 * HALF * shape.layers * shape.key_width  # bytes of a token's keys and values
    read = (HALF * shape.parameters + rows * context * cached) / layout.split
    attended = 4 * shape.layers * shape.query_width * context
    flops = rows * (2 * weights_used(shape) + attended) / layout.split
    busy = max(read / gpu.bandwidth, flops / gpu.flops) / use.decoding
    launches = shape.layers * use.launch * (LORA_LAUNCHES if lora else 1)
    return max(busy, launches if layout.share is None else use.schedule)


def rows_at_once(config: RunConfig, shape: Shape, gpu: Gpu, layout: Layout, limits: Limits) -> int:
    """Return how many rollouts, each to the limits, are sampled together by a copy of the weights.

    Raises:
        ValueError: vLLM's share of the GPU does not hold the weights and one rollout.
    """
    if layout.share is None:
        return config.training.rows_per_call
    longest = limits.prompt_tokens + limits.trajectory_tokens
    room = layout.share * gpu.memory * layout.split - HALF * shape.parameters
    rows = int(room // (2 * HALF * shape.layers * shape.key_width * longest))
    if rows < 1:
        raise ValueError(
            f"vLLM's share, {layout.share:.0%} of {gpu.memory / 1e9:.0f} GB, does not hold the weights "
            "and a rollout"
        )
    return rows


def batch_seconds(
    config: RunConfig, shape: Shape, gpu: Gpu, use: Efficiency, layout: Layout, limits: Limits
) -> float:
    """Return the seconds to sample a training batch, each rollout to the limits."""
    batch = config.training.questions_per_step * config.training.group_size
    own = math.ceil(batch * layout.split / layout.gpus)  # rollouts of a copy of the weights
    rows = min(own, rows_at_once(config, shape, gpu, layout, limits))
    written = min(limits.turns * limits.turn_tokens, limits.trajectory_tokens)
    whole = limits.prompt_tokens + limits.trajectory_tokens
    context = limits.prompt_tokens + limits.trajectory_tokens / 2
    lora = config.policy.lora is not None
    step = decode_seconds(shape, gpu, use, layout, rows, context, lora)
    prompt = forward_flops(shape, whole - written) / layout.split / (gpu.flops * use.compute)
    return math.ceil(own / rows) * written * step + own * prompt


def trained_rollouts(training: TrainingConfig, planned: Mapping[str, int]) -> int:
    """Return how many rollouts are trained on: not groups that were replaced, or rolled out once more."""
    batches = training.steps * training.questions_per_step * training.group_size
    return 0 if training.frozen else min(planned.get("train", 0), batches)


def gpu_seconds(
    config: RunConfig,
    planned: Mapping[str, int],
    shape: Shape,
    layout: Layout,
    gpu: Gpu,
    use: Efficiency,
    fill: float = 1.0,
) -> dict[str, float]:
    """Return a run's seconds by purpose of its rollouts, and of its "updates".

    Rollouts of any purpose are assumed to be sampled in batches as large as in training.

    Args:
        planned: the most rollouts by purpose.
        fill: the share of each token limit that a rollout takes.

    Raises:
        ValueError: see `rows_at_once`; or the run is supervised fine-tuning, or not computed in bfloat16.
    """
    training = config.training
    if config.method.supervised:
        raise ValueError(
            "it is projected for rollouts and their updates, not for strategy.kind sft"
        )
    if training.precision == "fp32" or training.engine_args.get("bf16") is False:
        asked = "training.precision is fp32"
        if training.precision != "fp32":
            asked = "training.engine_args.bf16 is false"
        raise ValueError(f"it is projected for bfloat16, and {asked}")
    limits = replace(
        config.limits,
        **{
            name: max(1, round(fill * getattr(config.limits, name)))
            for name in ("turn_tokens", "observation_tokens", "trajectory_tokens", "prompt_tokens")
        },
    )
    batch = batch_seconds(config, shape, gpu, use, layout, limits)
    rollouts = training.questions_per_step * training.group_size
    found = {purpose: count / rollouts * batch for purpose, count in planned.items()}
    trained = trained_rollouts(training, planned)
    row = forward_flops(shape, limits.prompt_tokens + limits.trajectory_tokens)
    flops = trained * row * update_passes(config, layout)
    return {**found, "updates": flops / (layout.gpus * gpu.flops * use.compute)}
