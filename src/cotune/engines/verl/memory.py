"""The memory of each GPU on veRL, whose training FSDP shards.

A projection: none of these figures has been measured on a GPU. Weights, gradients, AdamW's moments and
the reference policy are taken to be spread evenly; the rest is `cotune.engines.memory`'s estimate of one process.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.memory import Memory, MemoryEstimate, Shape, memory_of, shape_of
from cotune.errors import ConfigError
from cotune.utils.text import flat, size

_HALF = 2  # bytes of a weight that is gathered to compute with, or held by vLLM
_LOGIT = 8  # bytes of a logit: bfloat16, its gradient, and float32 for the log-probability
_GATHERED = 2  # units whose weights are whole at a time: the one at work and the one fetched ahead
_GPUS = 8  # of one machine, where nothing says how many
_ROLLOUT = "actor_rollout_ref.rollout"
_DEFAULTS: Mapping[str, float] = {
    "trainer.n_gpus_per_node": _GPUS,
    "trainer.nnodes": 1,
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": -1,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{_ROLLOUT}.tensor_model_parallel_size": 1,
}
"""veRL's own, but for the last, which is `engines.verl.settings`'."""


@dataclass(frozen=True)
class VerlMemory:
    """Bytes on each GPU, at most.

    Attributes:
        whole: what one process that held everything would need.
        shards: over how many GPUs weights, gradients, moments and reference are spread.
        units: weights that are gathered while a micro-batch is computed.
        logits: of a micro-batch; veRL holds them all.
        share: of a GPU that the rollout engine takes.
        engine_weights: of the rollout engine, within its share.
        rollout_cache: keys and values of one rollout at its longest, within that share.
    """

    whole: Memory
    shards: int
    units: int
    logits: int
    share: float
    engine_weights: int
    rollout_cache: int

    def spread(self, count: int) -> int:
        """A GPU's part of so many bytes."""
        return -(-count // self.shards)

    @property
    def held(self) -> int:
        """What is there all the time after the first step."""
        return self.spread(self.whole.held)

    @property
    def training(self) -> int:
        """The peak while a micro-batch is trained on; a rollout engine has then given its share back."""
        work = self.units + self.whole.activations + self.logits
        return self.held + self.spread(self.whole.gradients) + work

    def rollouts_at_once(self, gpu: int) -> int:
        """How many rollouts at their longest the engine's cache holds on a GPU of so many bytes."""
        return max(0, int(self.share * gpu) - self.engine_weights) // self.rollout_cache


def verl_memory(config: RunConfig, shape: Shape) -> VerlMemory:
    """What a run file needs on each GPU; ConfigError for one of its keys that is no number."""
    given = flat(config.training.engine_args)
    args = {name.replace("+", ""): value for name, value in given.items()}
    whole = memory_of(config, shape)
    layer = sum(a * b for a, b in shape.linear.values())
    limits = config.limits
    longest = limits.prompt_tokens + limits.trajectory_tokens
    asked = {name: _number(args, name, value) for name, value in _DEFAULTS.items()}
    split = max(1, int(asked[f"{_ROLLOUT}.tensor_model_parallel_size"]))
    tokens = config.training.micro_batch_size * longest
    return VerlMemory(
        whole=whole,
        shards=_shards(asked),
        units=_GATHERED * _HALF * max(layer, shape.vocabulary * shape.hidden),
        logits=tokens * shape.vocabulary * _LOGIT,
        share=asked[f"{_ROLLOUT}.gpu_memory_utilization"],
        engine_weights=shape.parameters * _HALF // split,
        rollout_cache=longest * shape.layers * shape.key_width * 2 * _HALF // split,
    )


def _number(args: Mapping[str, Any], name: str, default: float) -> float:
    """A key of `engine_args`; null is the default, as if it were not there.

    Raises:
        ConfigError: it is no number.
    """
    given = args.get(name)
    if given is None:
        return default
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if isinstance(given, bool) or not math.isfinite(value):
        raise ConfigError(
            f"training.engine_args.{name} is {given!r}; expected a number, or null for {default:g}"
        )
    return value


def _shards(asked: Mapping[str, float]) -> int:
    size = int(asked["actor_rollout_ref.actor.fsdp_config.fsdp_size"])
    gpus = int(asked["trainer.n_gpus_per_node"] * asked["trainer.nnodes"])
    return max(1, size if size > 0 else gpus)


_CARD = 80 * 10**9  # bytes of a large GPU


def estimate(config: RunConfig) -> MemoryEstimate:
    """Project the memory of each GPU, and what vLLM makes of its share."""
    memory, limits = verl_memory(config, shape_of(config)), config.limits
    whole, shards = memory.whole, memory.shards
    tokens = limits.prompt_tokens + limits.trajectory_tokens
    held = {
        f"weights / {shards}": whole.weights,
        f"reference policy / {shards}": whole.reference,
        f"optimizer (AdamW) / {shards}": whole.optimizer,
    }
    micro = config.training.micro_batch_size
    rollouts = memory.rollouts_at_once(_CARD)
    return MemoryEstimate(
        title="Memory of a GPU, projected, at most",
        rows=[
            *((name, memory.spread(count), memory.spread(count)) for name, count in held.items()),
            (f"gradients / {shards}", 0, memory.spread(whole.gradients)),
            ("weights gathered by layer", 0, memory.units),
            (f"activations, {micro} rows of {tokens:,} tokens", 0, whole.activations),
            ("log-probabilities", 0, memory.logits),
        ],
        sampling=None,
        training=memory.training,
        saved=whole.saved,
        notes=[
            f"Projected, not measured. {whole.trained:,} parameters are trained, sharded over {shards} "
            "GPUs by FSDP. CUDA, NCCL and fragmentation take 2 to 3 GiB besides.",
            f"The rollout engine takes {memory.share:.0%} of a GPU while it samples: of 80 GB "
            f"{size(memory.share * _CARD)}, {size(memory.engine_weights)} of them its weights, the rest "
            f"the cache of {rollouts:,} rollouts at their longest ({size(memory.rollout_cache)} each).",
        ],
    )
