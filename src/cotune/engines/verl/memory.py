"""Estimate memory per GPU on veRL, whose training FSDP shards.

This is a projection, not measured on GPUs. Weights, gradients, moments and the reference policy are
assumed to be sharded evenly; the rest is the estimate of `cotune.engines.memory` for one process.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.gpu_time import Layout
from cotune.engines.memory import HALF, Memory, MemoryEstimate, Shape, memory_of, shape_of
from cotune.engines.verl.arguments import DTYPES, MODEL_DTYPE
from cotune.errors import ConfigError
from cotune.utils.text import flat, size

_LOGIT = 8  # bytes per logit: bfloat16, its gradient, and float32 for the log-probability
_GATHERED = 2  # FSDP units that are whole at a time: the one in use and the one prefetched
_CARD = 80 * 10**9  # bytes of a large GPU
_ROLLOUT = "actor_rollout_ref.rollout"
# veRL's defaults, except for the GPUs per machine and the last entry, which `settings` sets.
_DEFAULTS: Mapping[str, float] = {
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    "actor_rollout_ref.actor.fsdp_config.fsdp_size": -1,
    f"{_ROLLOUT}.gpu_memory_utilization": 0.5,
    f"{_ROLLOUT}.tensor_model_parallel_size": 1,
}


@dataclass(frozen=True)
class VerlMemory:
    """Maximum bytes on each GPU.

    Attributes:
        gpu: the memory for training; `copies` are the weights that FSDP gathers for a micro-batch.
        saved: the size of best/ with the workers' checkpoint of it, and of a checkpoint, over all GPUs.
        shards: the number of GPUs that weights, gradients, moments and reference are sharded over.
        share: the rollout engine's fraction of a GPU while it samples.
        engine_weights: the rollout engine's weights, within its share.
        rollout_cache: the keys and values of one rollout at its longest, within its share.
    """

    gpu: Memory
    saved: tuple[int, int]
    shards: int
    share: float
    engine_weights: int
    rollout_cache: int

    def rollouts_at_once(self, gpu: int) -> int:
        """Return how many rollouts at their longest fit the cache on a GPU with `gpu` bytes."""
        return max(0, int(self.share * gpu) - self.engine_weights) // self.rollout_cache


def verl_memory(config: RunConfig, shape: Shape) -> VerlMemory:
    """Project the memory of each GPU.

    Raises:
        ConfigError: a key of `engine_args` that the projection uses is not a number.
    """
    asked, layout = _asked(config), layout_of(config)
    sharded = int(asked["actor_rollout_ref.actor.fsdp_config.fsdp_size"])
    shards, split = (sharded if sharded > 0 else layout.gpus), layout.split
    longest = config.limits.prompt_tokens + config.limits.trajectory_tokens
    layer = sum(inputs * outputs for _, inputs, outputs in shape.linear) // shape.layers
    policy = config.policy.model_copy(update={"dtype": weights_dtype(config)})
    whole = memory_of(config.model_copy(update={"policy": policy}), shape)
    # Weights for the workers and for Hugging Face, and two moments; best/ has a checkpoint of its own.
    saved = whole.optimizer * 2
    gpu = replace(
        whole,
        weights=-(-whole.weights // shards),
        reference=-(-whole.reference // shards),
        optimizer=-(-whole.optimizer // shards),
        gradients=-(-whole.gradients // shards),
        copies=_GATHERED * HALF * max(layer, shape.vocabulary * shape.hidden),
        head=config.training.micro_batch_size * longest * shape.vocabulary * _LOGIT,
        cache=None,  # vLLM samples, within its share
        sampling_work=None,
    )
    return VerlMemory(
        gpu,
        saved=(saved, saved),
        shards=shards,
        share=asked[f"{_ROLLOUT}.gpu_memory_utilization"],
        engine_weights=shape.parameters * HALF // split,
        rollout_cache=longest * shape.layers * shape.key_width * 2 * HALF // split,
    )


def weights_dtype(config: RunConfig) -> str:
    """Return the type that veRL loads the policy in for training: float32 unless something else is set."""
    given = flat(config.training.engine_args).get(f"actor_rollout_ref.actor.{MODEL_DTYPE}")
    named = {short: name for name, short in DTYPES.items()}
    asked = config.policy.dtype if given is None else named.get(str(given), "auto")
    return "float32" if asked == "auto" else asked


def layout_of(config: RunConfig) -> Layout:
    """Return the GPUs that train, and the rollout engine's share of each.

    Raises:
        ConfigError: a key of `engine_args` that is used here is not a number.
    """
    asked = _asked(config)
    return Layout(
        gpus=max(1, int(asked["trainer.n_gpus_per_node"] * asked["trainer.nnodes"])),
        share=asked[f"{_ROLLOUT}.gpu_memory_utilization"],
        split=max(1, int(asked[f"{_ROLLOUT}.tensor_model_parallel_size"])),
    )


def _asked(config: RunConfig) -> dict[str, float]:
    """Return the numbers of `engine_args` that the projections use, or veRL's defaults."""
    given = flat(config.training.engine_args)
    args = {name.replace("+", ""): value for name, value in given.items()}
    alone = {"trainer.n_gpus_per_node": 1.0} if config.training.single_gpu else {}
    defaults = {**_DEFAULTS, **alone}
    return {name: _number(args, name, value) for name, value in defaults.items()}


def _number(args: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number from `engine_args`; null means the default.

    Raises:
        ConfigError: the value is not a number.
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


def estimate(config: RunConfig) -> MemoryEstimate:
    """Project memory per GPU, and the number of rollouts that fit the rollout engine's share."""
    memory = verl_memory(config, shape_of(config.policy.path))
    rollouts = memory.rollouts_at_once(_CARD)
    return memory.gpu.estimate(
        config,
        "Memory of a GPU, projected, at most",
        [
            f"Projected, not measured. {memory.gpu.trained:,} parameters are trained, sharded over "
            f"{memory.shards} GPUs by FSDP. CUDA, NCCL and fragmentation take 2 to 3 GiB in addition.",
            f"The rollout engine takes {memory.share:.0%} of a GPU while it samples: of 80 GB "
            f"{size(memory.share * _CARD)}. Its weights take {size(memory.engine_weights)} of that, the rest "
            f"is the cache of {rollouts:,} rollouts at their longest ({size(memory.rollout_cache)} each).",
        ],
        spread=f" / {memory.shards}",
        copies="weights gathered by layer",
        saved=memory.saved,
    )
