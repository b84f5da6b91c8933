"""The numbers of a run file, small enough for two steps in seconds, with an evolution between them."""

from collections.abc import Sequence
from typing import Any

from cotune.config.run_file import TrainingConfig
from cotune.engines.engine import engine_named

QUESTIONS = 8
"""Of a step; the training data has as many, so that an epoch ends with the first step."""
_GROUP = 8  # rollouts of a question, at most


def scaled_training(training: TrainingConfig) -> tuple[TrainingConfig, Sequence[str]]:
    """GRPO as the run file has it, in two steps of a few rollouts on TRL.

    Returns:
        The fields, and the names of those of `engine_args` that are left out: all but the loss's.

    Raises:
        ConfigError: a field of `engine_args` that GRPOConfig does not have, or that is not its to say.
    """
    questions = min(training.questions_per_step, QUESTIONS)
    # Not fewer rollouts than the file has, unless it has many: a question's successes are counted.
    group = min(training.group_size, _GROUP)
    rows = questions * group
    mini_batches = training.mini_batches if rows % training.mini_batches == 0 else 1
    args = engine_named(training.engine).dry_run_args(training.engine_args)
    changes: dict[str, Any] = {
        "engine": "trl",
        "steps": 2,
        "questions_per_step": questions,
        "group_size": group,
        "mini_batches": mini_batches,
        "micro_batch_size": rows // mini_batches,
        "rollout_budget": None,
        "rows_per_call": min(training.rows_per_call, rows),
        "save_every": 0,
        "single_gpu": True,
        "engine_args": args,
    }
    without = [name for name in training.engine_args if name not in args]
    return training.model_copy(update=changes), without
