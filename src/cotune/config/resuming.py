"""The run file that a resumed run continues with, and the changes to it that are allowed."""

from collections.abc import Sequence

from cotune.config.changes import check_resumable
from cotune.config.overrides import with_overrides
from cotune.config.run_file import RunConfig, parse_config
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir


def resumed_config(
    run: RunDir, was: RunConfig, assignments: Sequence[str], trained: int | None
) -> RunConfig:
    """Return the run file of a folder with some fields set, checked for a resume.

    Args:
        run: the folder.
        was: its run file.
        assignments: as given to `--set`.
        trained: steps that the newest checkpoint contains; None without a checkpoint.

    Raises:
        ConfigError: a fixed field is set, fewer steps than are trained, or a finished run is given
            neither more steps nor more rollouts than it had.
    """
    config = was
    if assignments:
        source = f"{run.config_path} with --set"
        config = parse_config(with_overrides(run.read_config(), assignments), source)
        check_resumable(was, config, source)
    if config.method.supervised:
        _check_unfinished(run)
        return config
    if config.training.steps < (trained or 0):
        raise ConfigError(
            f"{run.path}: training.steps is {config.training.steps}, but {trained} are trained; expected "
            "at least as many"
        )
    if run.read_summary() is not None:
        _check_goes_further(run, was, config, trained)
    return config


def _check_unfinished(run: RunDir) -> None:
    """Of supervised fine-tuning, whose epochs are fixed."""
    if run.read_summary() is not None:
        raise ConfigError(
            f"{run.path}: this run is finished; see its report (cotune report {run.path} writes it "
            "anew), or start another run with other strategy.epochs"
        )


def _check_goes_further(
    run: RunDir, was: RunConfig, config: RunConfig, trained: int | None
) -> None:
    """Of a finished run."""
    before, now = was.training, config.training
    if not was.has_batches:
        raise ConfigError(
            f"{run.path}: this run is finished, and training.frozen leaves nothing to go on with; see its "
            f"report (cotune report {run.path} writes it anew), or start another run"
        )
    more_rollouts = before.rollout_budget is not None and (
        now.rollout_budget is None or now.rollout_budget > before.rollout_budget
    )
    if now.steps <= before.steps and not more_rollouts:
        raise ConfigError(
            f"{run.path}: this run is finished; see its report (cotune report {run.path} writes it "
            "anew), give it more steps with --set training.steps=…, or start another run"
        )
    if trained is None:
        raise ConfigError(
            f"{run.path}: this run is finished and keeps no checkpoint to go on from "
            f"(training.save_every is {before.save_every}); start another run"
        )
