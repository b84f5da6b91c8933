"""Run files that several tests share: small enough that a whole run takes seconds."""

import copy
from pathlib import Path
from typing import Any

import yaml

from cotune.config.build import build_environment, build_strategy, initial_instruction
from cotune.config.run_file import RunConfig, parse_config
from cotune.protocols import Environment, Strategy, TokenRules

TINY: dict[str, Any] = {
    "name": "tiny",
    "threads": 1,
    "policy": {"path": "bundled:geo"},
    "environment": {"kind": "geo", "train": 8, "validation": 3, "test": 6},
    "limits": {"turns": 3, "turn_tokens": 24, "observation_tokens": 80, "trajectory_tokens": 200, "prompt_tokens": 384},
    "strategy": {
        "kind": "inspo",
        "population_size": 3,
        "prune_every": 2,
        "evolve_every": 2,
        "evolve_until": 4,
        "verification_tasks": 2,
        "verification_rounds": 1,
    },
    "training": {
        "steps": 3,
        "questions_per_step": 4,
        "group_size": 2,
        "mini_batches": 1,
        "micro_batch_size": 2,
        "learning_rate": 1.0e-4,
        "schedule": "constant",
        "warmup": 0,
        "kl": 0,
        "save_every": 1,
    },
    "evaluation": {"every": 0},
}  # fmt: skip


def tiny(output: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tiny run file as plain data; a section of `changes` is merged into the section."""
    raw: dict[str, Any] = copy.deepcopy(TINY) | {"output": str(output)}
    for name, value in (changes or {}).items():
        section = raw.get(name)
        if isinstance(value, dict) and isinstance(section, dict):
            base = section if value.get("kind", section.get("kind")) == section.get("kind") else {}
            raw[name] = {**base, **value}
        else:
            raw[name] = value
    return raw


def config_of(**changes: Any) -> RunConfig:
    """The tiny run file, read; `changes` are its sections, or parts of them."""
    return parse_config(tiny(Path("out"), changes), "test")


def script_fields(output: Path) -> dict[str, Any]:
    """What a script's run folder records, as little as possible."""
    return {"library": "trl", "output": str(output), "strategy": {"kind": "static"}}


def write(path: Path, raw: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def environment_of(config: RunConfig) -> Environment:
    """A run file's environment."""
    return build_environment(config.environment, config.dataset, config.instruction)


def strategy_of(
    config: RunConfig, environment: Environment, tokens: TokenRules | None = None
) -> Strategy:
    """A run file's strategy; `tokens` is the policy's codec."""
    return build_strategy(
        config.strategy,
        environment,
        instruction=initial_instruction(config.instruction.text, environment),
        seed=config.seed,
        limits=config.limits,
        tokens=tokens,
    )
