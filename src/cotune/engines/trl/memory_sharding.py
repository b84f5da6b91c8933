"""The memory of each GPU on TRL, in one process or spread by FSDP2 or DeepSpeed's ZeRO."""

import json
from dataclasses import replace
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.memory import Memory, MemoryEstimate, Shape, memory_of, shape_of
from cotune.errors import ConfigError
from cotune.policy.rounding import rounding_notice
from cotune.utils.text import size

_FULL, _HALF = 4, 2
# DeepSpeed's reduce_bucket_size, in numbers; the next bucket is filled while one is reduced.
_BUCKET, _BUCKETS = 500_000_000, 2


def sharding_named(config: RunConfig) -> str:
    """What `training.engine_args` asks for: none, fsdp2, zero1, zero2 (or another stage).

    Raises:
        ConfigError: DeepSpeed's file cannot be read.
    """
    args = config.training.engine_args
    if args.get("fsdp"):
        return "fsdp2"
    if not args.get("deepspeed"):
        return "none"
    return f"zero{_deepspeed(args['deepspeed']).get('zero_optimization', {}).get('stage', 0)}"


def _deepspeed(given: Any) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    try:
        with open(given, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError(
            f"training.engine_args.deepspeed: {given!r} cannot be read ({type(error).__name__}); "
            "expected a JSON file of DeepSpeed's, or its content"
        ) from error
    return found if isinstance(found, dict) else {}


def memory_over(config: RunConfig, shape: Shape, processes: int) -> Memory:
    """`memory_of`, of each of several processes that train in bfloat16 with `policy.dtype` float32.

    Spread are, under FSDP2, weights, gradients and AdamW's moments in float32; gathered in bfloat16 are
    all weights while sampling and, at most, while training. ZeRO keeps bfloat16 weights whole and spreads
    float32 ones and the moments; stage 2 spreads gradients, too. DDP spreads nothing.
    """
    kind, whole = sharding_named(config), memory_of(config, shape)
    if kind not in ("fsdp2", "zero1", "zero2"):
        return whole
    half = config.policy.model_copy(update={"dtype": "bfloat16"})
    memory = memory_of(config.model_copy(update={"policy": half}), shape)
    trained = memory.trained
    frozen = memory.parameters if config.policy.lora else 0
    moments = 2 * trained * _FULL // processes
    if kind == "fsdp2":
        return replace(
            memory,
            weights=(trained + frozen) * _FULL // processes,
            reference=memory.reference * 2 // processes,
            optimizer=moments,
            copies=memory.parameters * _HALF,
            gradients=trained * _FULL // processes,
            buckets=0,
        )
    return replace(
        memory,
        weights=(trained + frozen) * _HALF,
        optimizer=moments + trained * _FULL // processes,
        copies=0,
        gradients=trained * _HALF // (processes if kind == "zero2" else 1),
        buckets=_BUCKETS * min(_BUCKET, trained) * _HALF,
    )


_CARD = 80 * 10**9  # bytes of a large GPU


def estimate(config: RunConfig, processes: int = 1) -> MemoryEstimate:
    """Estimate the memory of each GPU; see `cotune.engines.Engine.memory`."""
    shape, training, limits = shape_of(config), config.training, config.limits
    memory = memory_over(config, shape, processes)
    longest = limits.prompt_tokens + limits.trajectory_tokens
    both = {
        "weights": memory.weights,
        "reference policy": memory.reference,
        "optimizer (AdamW)": memory.optimizer,
        "copies to compute in bfloat16": memory.copies,
    }
    micro = training.micro_batch_size
    return MemoryEstimate(
        title="Memory of a GPU, estimated, at most",
        rows=[
            *((name, count, count) for name, count in both.items()),
            (f"KV cache, {training.rows_per_call} rows of {longest:,} tokens", memory.cache, 0),
            ("prompts, attention, draws", memory.sampling_work, 0),
            ("gradients", 0, memory.gradients),
            (f"activations, {micro} rows of {longest:,} tokens", 0, memory.activations),
            ("log-probabilities", 0, memory.head),
        ],
        sampling=memory.sampling,
        training=memory.training,
        saved=memory_of(config, shape).saved,
        notes=_notes(config, shape, memory, processes),
    )


def _notes(config: RunConfig, shape: Shape, memory: Memory, processes: int) -> list[str]:
    kind = sharding_named(config)
    if kind == "none":
        several = f"Where several processes train, each holds {size(memory.buckets)} more (DDP)."
    else:
        more = f"; each holds {size(memory.buckets)} more (buckets)" if memory.buckets else ""
        over = "process: see --processes" if processes == 1 else "processes"
        several = f"Spread by {kind} over {processes} {over}{more}."
    share = f"{memory.trained / memory.parameters:.1%} of " if config.policy.lora else ""
    notes = [
        f"Trained: {share}{memory.parameters:,} parameters. {several} CUDA and fragmentation take 1 "
        "to 2 GiB besides."
    ]
    if memory.cache is None:
        notes.append("vLLM samples: its share of the GPU is training.engine_args' to say.")
    elif (memory.sampling or 0) > _CARD:
        notes.append(
            "notice: sampling needs more than a GPU of 80 GB has; lower training.rows_per_call, the "
            "rollouts that are sampled together, which changes no result"
        )
    dtype = shape.dtype if config.policy.dtype == "auto" else config.policy.dtype
    rate = config.training.engine_args.get("learning_rate", config.training.learning_rate)
    if config.policy.lora is None and (lost := rounding_notice(dtype, float(rate))):
        notes.append(f"notice: {lost}")
    return notes
