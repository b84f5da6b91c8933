"""What is left on each GPU where FSDP2 or DeepSpeed's ZeRO spreads a run over processes."""

import json
from dataclasses import replace
from typing import Any

from cotune.cli.plan.memory import Memory, Shape, memory_of
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError

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
