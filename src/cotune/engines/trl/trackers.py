"""Tables of instructions and hints for trackers, in addition to the trainer's metrics.

They follow the trainer's reporting callbacks, whether from `report_to` or added by the user.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerState
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)

from cotune.protocols import Strategy
from cotune.types import HintStanding, Instruction, Standing

if TYPE_CHECKING:
    from cotune.engines.trl.trl_joint import TRLJoint
    from cotune.engines.trl.trl_run import TRLRun

INSTRUCTIONS, HINTS = "cotune/instructions", "cotune/hints"
_INSTRUCTION_COLUMNS = (
    "id", "parent", "lineage", "origin", "born", "alive", "weight", "probability",
    "observed_rollouts", "best", "text", "critique",
)  # fmt: skip
_HINT_COLUMNS = ("hint", "mean_dev_score", "solved", "covers", "best")

_HARMLESS = frozenset(" .,;:?'%-")  # in Markdown, within a cell

Row = tuple[Any, ...]
Table = tuple[str, tuple[str, ...], list[Row]]
"""Name, columns, rows."""


def tables(strategy: Strategy) -> list[Table]:
    """Return a strategy's tables; the table of hints only if there are hints."""
    best, text = strategy.best_instruction_id(), strategy.best_prompt().instruction
    stand: list[Standing] = getattr(strategy, "standings", list[Standing])()
    rows, paths = list[Row](), dict[str | None, str]()
    for at in stand or [Standing(Instruction(best, text))]:
        one = at.instruction
        above = paths.get(one.parent)
        paths[one.id] = f"{above} > {one.id}" if above else one.id
        rows.append(
            (one.id, one.parent, paths[one.id], one.origin, one.born, at.alive, at.weight,
             at.probability, at.observed_rollouts, one.id == best, one.text, one.critique)
        )  # fmt: skip
    found: list[Table] = [(INSTRUCTIONS, _INSTRUCTION_COLUMNS, rows)]
    hints: list[HintStanding] = getattr(strategy, "hint_standings", list[HintStanding])()
    if hints:
        shown = strategy.best_hint()
        found.append(
            (HINTS, _HINT_COLUMNS, [(*astuple(h), bool(shown) and h.hint == shown) for h in hints])
        )
    return found


class TrackerCallback(TrainerCallback):
    """Log the tables after each evolution that changed one, and when training ends. Rank 0."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint
        self._last: object = None
        self._logged_at = -1

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._last = None

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        # The weights change at every step, so log a table only when a text in it has changed.
        if self._reports and (now := self._texts()) != self._last:
            self._last = now
            self._log(state)

    def on_epoch_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        # The data set is one epoch long. Once training has ended, trackers are already closed.
        if self._reports and self._logged_at != state.global_step:
            self._log(state)

    @property
    def _reports(self) -> bool:
        joint = self._joint
        return joint.coordinator.comm.rank == 0 and any(True for _ in reporting(joint))

    def _texts(self) -> object:
        return [
            [(row[0], row[columns.index("alive")] if "alive" in columns else None) for row in rows]
            for _, columns, rows in tables(self._joint.coordinator.strategy)
        ]

    def _log(self, state: TrainerState) -> None:
        self._logged_at = state.global_step
        found = tables(self._joint.coordinator.strategy)
        for callback in reporting(self._joint):
            _log_tables(callback, found, state.global_step)


def reporting(joint: "TRLRun[Any]") -> Iterator[TrainerCallback]:
    """Yield the trainer's callbacks for trackers that accept tables."""
    for callback in joint.trainer.callback_handler.callbacks if joint.bound else ():
        if isinstance(callback, TensorBoardCallback | WandbCallback | TrackioCallback):
            yield callback


def report_scores(joint: "TRLRun[Any]", scores: Mapping[str, float]) -> None:
    """Log the scores of an evaluation that is not the trainer's own; rank 0.

    Trackers show "eval_em" as eval/em and "test_em" as test/em, like the trainer's own metrics.
    """
    if not joint.bound:
        return
    trainer = joint.trainer
    for callback in reporting(joint):
        callback.on_log(
            trainer.args,
            trainer.state,
            trainer.control,
            logs=dict(scores),
            model=trainer.model,
        )


def close_reports(joint: "TRLRun[Any]") -> None:
    """Close trackers that scores after training reopened. W&B's run ends with the process."""
    trainer = joint.trainer
    for callback in reporting(joint):
        if not isinstance(callback, WandbCallback):
            callback.on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)


def tensorboard_into(joint: "TRLRun[Any]", folder: Path) -> None:
    """Write TensorBoard's files to a folder, unless TENSORBOARD_LOGGING_DIR names another."""
    for callback in reporting(joint):
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)


def _log_tables(callback: TrainerCallback, found: Sequence[Table], step: int) -> None:
    if isinstance(callback, TensorBoardCallback):
        if callback.tb_writer is not None:
            for name, columns, rows in found:
                callback.tb_writer.add_text(name, markdown_table(columns, rows), step)
            callback.tb_writer.flush()
        return
    tracker: Any = import_module("wandb" if isinstance(callback, WandbCallback) else "trackio")
    if isinstance(callback, WandbCallback) and tracker.run is None:
        return
    # Both display a cell's text as plain text.
    shown = {
        name: tracker.Table(columns=list(columns), data=[list(row) for row in rows])
        for name, columns, rows in found
    }
    tracker.log({**shown, "train/global_step": step})


def markdown_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Format a table in Markdown whose cells contain only plain text.

    TensorBoard renders Markdown, and would load an image that a model's text requests.
    """
    lines = [columns, ["---"] * len(columns), *[[_cell(v) for v in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    plain = " ".join(text.split())
    return "".join(c if c.isalnum() or c in _HARMLESS else f"&#{ord(c)};" for c in plain)
