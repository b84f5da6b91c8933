"""The numbers of a run file, small enough for two steps in seconds, with an evolution between them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cotune.config.run_file import StrategyConfig, TrainingConfig
from cotune.engines.engine import engine_named
from cotune.methods.composed import ComposedOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.p2o import P2OOptions

QUESTIONS = 8
"""Of a step; the training data has as many, so that an epoch ends with the first step."""
_GROUP = 8  # rollouts of a question, at most
_SCORED = 2  # questions that a candidate is verified on, or a hint scored
_BUDGET = 24  # evaluations of GEPA


def scaled_strategy(options: StrategyConfig) -> StrategyConfig:
    """The same strategy with every option but its sizes; what evolves does so after the first step."""
    if isinstance(options, InspoOptions):
        return _inspo(options)
    if isinstance(options, P2OOptions):
        return _p2o(options)
    if isinstance(options, ComposedOptions):
        return replace(options, inspo=_inspo(options.inspo), p2o=_p2o(options.p2o))
    if isinstance(options, GepaOptions):
        return replace(options, dev_size=_SCORED, budget=_BUDGET, minibatch=2, beam=1)
    return options


def _inspo(options: InspoOptions) -> InspoOptions:
    size = min(options.population_size, 3)
    return replace(
        options,
        population_size=size,
        parents=min(options.parents, size),
        prune_every=min(options.prune_every, 1),
        evolve_every=min(options.evolve_every, 1),
        evolve_until=min(options.evolve_until, 2),
        verification_tasks=min(options.verification_tasks, _SCORED),
        verification_rounds=min(options.verification_rounds, 2),
        failures_per_reflection=min(options.failures_per_reflection, 2),
        candidates=min(options.candidates, 3),
    )


def _p2o(options: P2OOptions) -> P2OOptions:
    hints = options.hints
    scaled = replace(
        hints,
        hard_set_min_count=2,
        dev_size=_SCORED,
        budget=_BUDGET,
        beam=min(hints.beam, 2),
        minibatch=min(hints.minibatch, 2),
    )
    return replace(options, hints=scaled)


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
