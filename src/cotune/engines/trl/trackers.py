"""Trackers: scores of evaluations that are not the trainer's own.

They follow the trainer's reporting callbacks, whether from `report_to` or added by the user.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)

if TYPE_CHECKING:
    from cotune.engines.trl.trl_joint import TRLJoint


def reporting(joint: "TRLJoint") -> Iterator[TrainerCallback]:
    """Yield the trainer's callbacks for trackers that take scores."""
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
