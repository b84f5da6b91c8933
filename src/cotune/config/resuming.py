"""Resume a run: decide which run-file fields may change, and detect which did."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.config.overrides import with_overrides
from cotune.config.run_file import RunConfig, check_values, parse_recorded
from cotune.errors import ConfigError
from cotune.run.best import FILE as BEST
from cotune.run.checkpoints import trained_steps
from cotune.run.json_files import Row
from cotune.run.run_dir import RunDir
from cotune.utils.importing import import_from
from cotune.utils.text import flat

_FIXED = (
    "policy", "dataset", "environment", "rewards", "instruction", "limits", "strategy", "seed",
)  # fmt: skip
# Changing these changes a step: its questions, its optimizer steps, or its arithmetic.
_FIXED_IN_TRAINING = (
    "engine", "questions_per_step", "group_size", "mini_batches", "frozen", "precision",
)  # fmt: skip
# A checkpoint's optimizer has these; another optimizer cannot load its state.
_OF_OPTIMIZER = ("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
_FREE = "name, threads, environment.retriever, llm, evaluation, logging and training"
_SILENT = ("llm", "training.engine_args")


def open_trained(folder: Path, assignments: Sequence[str] = ()) -> tuple[RunDir, RunConfig]:
    """Open a run folder; return it with its run file, or what a script recorded in its place, after `assignments`.

    Raises ConfigError: no run folder, or a field is unknown or has no valid value.
    """
    run = RunDir.open(folder)
    import_from((Path.cwd(),))  # as for training: modules named in the run file may be there
    return run, recorded_config(run, assignments)


def recorded_config(run: RunDir, assignments: Sequence[str] = ()) -> RunConfig:
    """Return the run file of an existing folder with some fields set; only these are checked for keys.

    Raises ConfigError: a field is unknown or has no valid value.
    """
    source = f"{run.config_path} with --set" if assignments else str(run.config_path)
    check_values(with_overrides({}, assignments), source)
    return parse_recorded(with_overrides(run.read_config(), assignments), source)


def resumed_config(run: RunDir, was: RunConfig, assignments: Sequence[str]) -> RunConfig:
    """Return the run file of a folder, now `was`, with some fields set, checked for a resume.

    Raises ConfigError: a fixed field is changed, fewer steps than are trained, or a finished run is given neither more
    steps nor more rollouts than it had.
    """
    trained = trained_steps(run.checkpoints_path)
    config = was
    if assignments:
        config = recorded_config(run, assignments)
        check_resumable(was, config, f"{run.config_path} with --set")
    if config.training.steps < (trained or 0):
        raise ConfigError(
            f"{run.path}: training.steps is {config.training.steps}, but {trained} are trained; expected "
            "at least as many"
        )
    # Without its best policy a run is finished again, from its newest checkpoint.
    lost = bool(trained) and not (run.best_path / BEST).is_file()
    summary = None if lost else run.read_summary()
    if summary is not None and _nothing_left(was, config, summary, trained):
        raise ConfigError(
            f"{run.path}: this run is finished; see its report. With a checkpoint, --set training.steps=… or, if "
            "that is spent, training.rollout_budget=… continues it"
        )
    return config


def _nothing_left(was: RunConfig, config: RunConfig, summary: Row, trained: int | None) -> bool:
    """Return whether a finished run has nothing to continue."""
    training = config.training
    # run.yaml may have the steps and the budget of a resume that failed before it began.
    steps = summary.get("asked_steps", was.training.steps)
    budget = summary.get("rollout_budget", was.training.rollout_budget)
    more_rollouts = budget is not None and (
        training.rollout_budget is None or training.rollout_budget > budget
    )
    spent = any(arm.get("ended_early") for arm in summary.get("arms", {}).values())
    more_steps = training.steps > steps and not spent
    return trained is None or not config.has_batches or not (more_rollouts or more_steps)


def identity(config: RunConfig) -> dict[str, str]:
    """Return the fields that must not change on a resume, as JSON."""
    plain = config.model_dump(mode="json")
    if plain["environment"].get("retriever"):
        # A server's address and its timeout may change; its answers cannot be checked.
        plain["environment"]["retriever"] = {}
    fixed = {field: plain[field] for field in _FIXED}
    fixed |= {f"training.{name}": plain["training"][name] for name in _FIXED_IN_TRAINING}
    fixed |= {
        f"training.engine_args.{name}": value
        for name, value in plain["training"]["engine_args"].items()
        if name in _OF_OPTIMIZER
    }
    return {field: json.dumps(value, sort_keys=True) for field, value in fixed.items()}


def check_resumable(was: RunConfig, now: RunConfig, source: str) -> None:
    """Raise ConfigError, which names the source of changes, if a run that started as `was` cannot go on as `now`."""
    before = identity(was)
    after = identity(now)
    for field in before | after:
        if after.get(field) != before.get(field):
            raise ConfigError(
                f"{source}: {field} is fixed once a run has started; on resume {_FREE} can change "
                f"(in training, not {', '.join(_FIXED_IN_TRAINING)}); leave it, or start a new run in "
                "another folder"
            )
    if was.output != now.output:
        raise ConfigError(
            f"{source}: output is fixed once a run has started; move the whole folder and resume it there"
        )


def changes(was: Row, now: Mapping[str, object]) -> dict[str, list[object] | None]:
    """Return the old and the new value of each field of run.yaml that differs; null if absent.

    None for fields below `llm` and `training.engine_args`, which may hold a key.
    """
    before = flat(was)
    after = flat(now)
    return {
        field: None if field.startswith(_SILENT) else [before.get(field), after.get(field)]
        for field in sorted(before.keys() | after.keys())
        if before.get(field) != after.get(field)
    }
