"""Estimate memory per GPU on TRL, in one process or sharded by FSDP2 or DeepSpeed's ZeRO."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from cotune.config.run_file import RunConfig
from cotune.engines.memory import (
    FULL,
    HALF,
    Memory,
    MemoryEstimate,
    Shape,
    cpu_memory,
    memory_of,
    shape_of,
)
from cotune.errors import ConfigError
from cotune.policy.local_llm import LocalOptions
from cotune.policy.update_rounding import rounding_notice
from cotune.utils.text import size

# DeepSpeed's default reduce_bucket_size, in numbers; one bucket fills while another is reduced.
_BUCKET, _BUCKETS = 500_000_000, 2
_CARD = 80 * 10**9  # bytes of a large GPU


def sharding_named(args: Mapping[str, Any]) -> str:
    """Return the sharding in `training.engine_args`: none, fsdp2, zero1, zero2 (or another stage).

    Raises:
        ConfigError: the DeepSpeed file cannot be read.
    """
    if args.get("fsdp"):
        return "fsdp2"
    given = args.get("deepspeed")
    if not given:
        return "none"
    try:
        found: Any = given
        if not isinstance(given, dict):
            with open(given, encoding="utf-8") as file:
                found = json.load(file)
        return f"zero{found.get('zero_optimization', {}).get('stage', 0)}"
    except (OSError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"training.engine_args.deepspeed: {given!r} cannot be read ({type(error).__name__}); "
            "expected a JSON file of DeepSpeed's, or its content"
        ) from error


def memory_over(config: RunConfig, shape: Shape, processes: int) -> Memory:
    """Estimate the memory of each of several processes; DDP shards nothing.

    With sharding, `policy.dtype` is float32 and training computes in bfloat16. FSDP2 shards weights,
    gradients and moments in float32 and gathers at most all weights in bfloat16. ZeRO keeps whole
    bfloat16 weights and shards float32 ones and the moments; stage 2 also shards gradients.
    """
    kind = sharding_named(config.training.engine_args)
    if kind not in ("fsdp2", "zero1", "zero2"):
        return memory_of(config, shape)
    half = config.policy.model_copy(update={"dtype": "bfloat16"})
    memory = memory_of(config.model_copy(update={"policy": half}), shape)
    trained = memory.trained
    held = trained + (memory.parameters if config.policy.lora else 0)
    moments = 2 * trained * FULL // processes
    if kind == "fsdp2":
        return replace(
            memory,
            weights=held * FULL // processes,
            reference=memory.reference * 2 // processes,
            optimizer=moments,
            copies=memory.parameters * HALF,
            gradients=trained * FULL // processes,
            buckets=0,
        )
    return replace(
        memory,
        weights=held * HALF,
        optimizer=moments + trained * FULL // processes,
        copies=0,
        gradients=trained * HALF // (processes if kind == "zero2" else 1),
        buckets=_BUCKETS * min(_BUCKET, trained) * HALF,
    )


def estimate(config: RunConfig, processes: int = 1) -> MemoryEstimate:
    """Estimate the memory of each GPU; see `cotune.engines.engine.Engine.memory`."""
    shape = shape_of(config.policy.path)
    memory = memory_over(config, shape, processes)
    return memory.estimate(
        config,
        "Memory of a GPU, projected, at most",
        _notes(config, shape, memory, processes),
        saved=memory_of(config, shape).saved,
    )


def _notes(config: RunConfig, shape: Shape, memory: Memory, processes: int) -> list[str]:
    kind = sharding_named(config.training.engine_args)
    if kind == "none":
        several = f"If several processes train, each holds {size(memory.buckets)} more (DDP)."
    else:
        more = f"; each holds {size(memory.buckets)} more (buckets)" if memory.buckets else ""
        over = "process: see --processes" if processes == 1 else "processes"
        several = f"Spread by {kind} over {processes} {over}{more}."
    share = f"{memory.trained / memory.parameters:.1%} of " if config.policy.lora else ""
    notes = [
        f"Trained: {share}{memory.parameters:,} parameters. {several} CUDA and fragmentation take 1 "
        "to 2 GiB in addition."
    ]
    if memory.cache is None:
        notes.append("vLLM samples: its share of the GPU is set in training.engine_args.")
    elif (memory.sampling or 0) > _CARD:
        notes.append(
            "notice: sampling needs more than an 80 GB GPU has; lower training.rows_per_call, the "
            "rollouts that are sampled together, which changes no result"
        )
    if isinstance(config.proposer, LocalOptions):
        proposing = shape_of(config.proposer.as_policy(config.policy).path).parameters
        notes.append(
            f"The LLM that proposes is loaded beside the policy: {proposing:,} parameters more, and the cache of "
            "one reply."
        )
    if not torch.cuda.is_available():
        taken = size(cpu_memory(config, shape))
        notes.append(f"Without a GPU, as here: at most {taken} of this machine's memory in all.")
    dtype = shape.dtype if config.policy.dtype == "auto" else config.policy.dtype
    rate = config.training.learning_rate
    if config.policy.lora is None and (lost := rounding_notice(dtype, rate)):
        notes.append(f"notice: {lost}")
    return notes
