"""Trackers: scores of evaluations that are not the trainer's own, and a table of the instructions.

They follow the trainer's reporting callbacks, whether from `report_to` or added by the user.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerState
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)

from cotune.run.lineage import instruction_rows
from cotune.run.run_dir import RunDir

if TYPE_CHECKING:
    from cotune.engines.trl.trl_joint import TRLJoint

TABLE = "cotune/instructions"
COLUMNS = ("id", "parent", "origin", "born", "alive", "weight", "best", "text")


def instruction_table(run: RunDir) -> list[list[Any]]:
    """Return a row of `COLUMNS` for each instruction of a run."""
    return [
        [i.id, i.parent, i.origin, i.born, i.pruned is None, i.weight, i.best, i.text]
        for i in instruction_rows(run)
    ]


class TrackerCallback(TrainerCallback):
    """Log the instructions to W&B and trackio whenever one is added or pruned; rank 0."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint
        self._alive: list[list[Any]] = []

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        joint = self._joint
        callbacks = [c for c in reporting(joint) if not isinstance(c, TensorBoardCallback)]
        if joint.coordinator.comm.rank != 0 or not callbacks:
            return
        rows = instruction_table(joint.parts.record)
        # The weights change at every step, so log the table only when an instruction comes or goes.
        alive = [[row[0], row[4]] for row in rows]
        if alive == self._alive:
            return
        self._alive = alive
        for callback in callbacks:
            log_table(callback, rows, state.global_step)


def log_table(callback: TrainerCallback, rows: list[list[Any]], step: int) -> None:
    """Log the table to W&B or trackio, which display a cell as plain text."""
    is_wandb = isinstance(callback, WandbCallback)
    tracker: Any = import_module("wandb" if is_wandb else "trackio")
    if not is_wandb or tracker.run is not None:
        table = tracker.Table(columns=list(COLUMNS), data=rows)
        tracker.log({TABLE: table, "train/global_step": step})


def reporting(joint: "TRLJoint") -> Iterator[TrainerCallback]:
    """Yield the trainer's callbacks for trackers that accept tables."""
    for callback in joint.trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback | WandbCallback | TrackioCallback):
            yield callback


def report_scores(joint: "TRLJoint", scores: Mapping[str, float]) -> None:
    """Log the scores of an evaluation that is not the trainer's own; rank 0.

    Trackers show "eval_em" as eval/em and "test_em" as test/em, like the trainer's own metrics.
    """
    trainer = joint.trainer
    for callback in reporting(joint):
        callback.on_log(
            trainer.args,
            trainer.state,
            trainer.control,
            logs=dict(scores),
            model=trainer.model,
        )


def close_reports(joint: "TRLJoint") -> None:
    """Close trackers that scores after training reopened. W&B's run ends with the process."""
    trainer = joint.trainer
    for callback in reporting(joint):
        if not isinstance(callback, WandbCallback):
            callback.on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)


def tensorboard_into(joint: "TRLJoint", folder: Path) -> None:
    """Write TensorBoard's files to a folder, unless TENSORBOARD_LOGGING_DIR names another."""
    for callback in reporting(joint):
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)
