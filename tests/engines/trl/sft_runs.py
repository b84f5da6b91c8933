"""Fine-tuning runs of a tiny policy in a world of its alphabet."""

from pathlib import Path
from typing import Any

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.evaluation import Outcome
from cotune.engines.preflight import Preflight
from cotune.engines.trl.grpo import choose
from cotune.engines.trl.run_file_setup import prepare
from cotune.engines.trl.sft import train
from cotune.run.run_dir import RunDir
from tests.policy.tiny import tiny_model, tiny_tokenizer

ROLLOUTS: dict[str, Any] = {"kind": "sft", "data": "rollouts", "samples": 3, "keep_from": 0.02}


def saved_policy(folder: Path) -> Path:
    """A tiny policy as a Hugging Face folder."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configured(
    policy: Path, output: Path, strategy: dict[str, Any] | None = None, **training: Any
) -> RunConfig:
    """Six questions; four rollouts a batch; two micro-batches of two rows a step."""
    raw = {
        "output": str(output),
        "seed": 1,
        "threads": 1,
        "policy": {"path": str(policy)},
        "environment": "tests.policy.tiny:Letters",
        "limits": {
            "turns": 3,
            "turn_tokens": 8,
            "observation_tokens": 6,
            "trajectory_tokens": 40,
            "prompt_tokens": 64,
        },
        "strategy": strategy or ROLLOUTS,
        "training": {
            "questions_per_step": 2,
            "group_size": 2,
            "mini_batches": 1,
            "micro_batch_size": 2,
            "learning_rate": 1e-3,
            "schedule": "constant",
            "warmup": 0,
            "save_every": 2,
            **training,
        },
        "evaluation": {"every": 2},
    }
    return parse_config(raw, "test")


def start(config: RunConfig) -> Outcome:
    """Trains in a new folder."""
    run = RunDir.create(config.output, {})
    return go_on(config, run, run, resume=False)


def go_on(config: RunConfig, run: RunDir, journal: Any, resume: bool = True) -> Outcome:
    setup = prepare(Preflight(config, new=False).require(), run.checkpoints_path)
    return train(config, run, journal, setup, choose(run, setup) if resume else None)
