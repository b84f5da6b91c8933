"""What runs on any trainer of TRL share: the trainer, what a resume compares and says, a row of metrics."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from transformers import Trainer, TrainerState

from cotune.changes import changes
from cotune.contracts import ConfigError, EngineError, State
from cotune.engines.trl.parts import Parts

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


class Bound(Generic[AnyTrainer]):
    """A run that belongs to a trainer, from when that is made.

    Attributes:
        parts: the run besides its trainer.
    """

    parts: Parts
    _trainer: AnyTrainer | None = None

    @property
    def identity(self) -> dict[str, str]:
        """By field, what a resume must find as it was."""
        raise NotImplementedError

    @property
    def bound(self) -> bool:
        """Whether there is a trainer."""
        return self._trainer is not None

    @property
    def trainer(self) -> AnyTrainer:
        if self._trainer is None:
            raise EngineError("no trainer yet: call bind(trainer), or train, before evaluating")
        return self._trainer

    def check_identity(self, state: State) -> None:
        """Raises ConfigError where another run was saved than this one."""
        mine = self.identity
        for name, was in self.parts.renew(state["identity"]).items():
            if mine.get(name) != was:
                raise ConfigError(
                    f"{name}: is not what the saved run began with ({was[:120]}); restore it, or "
                    "start a new run in another folder"
                )

    def go_on_from(self, step: int, saved: Mapping[str, Any]) -> None:
        """Begins an attempt after a step: cuts back what was written after it, says what changed.

        Args:
            saved: what was saved at that step; its `changeable`, where it has one, is the run file's
                of then.
        """
        now = self.parts.changeable
        self.parts.meter.begin_attempt(step)
        self.parts.journal.cut_back(step)
        changed = changes(saved.get("changeable", now), now)
        self.parts.journal.event("resumed", step, from_step=step, changed=changed)


def metrics_row(logs: Mapping[str, Any] | None, state: TrainerState) -> dict[str, float] | None:
    """The numbers that a trainer logs of an optimizer step; None where it logs something else."""
    if logs is None or "loss" not in logs:
        return None
    numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
    return {**numbers, "optimizer_step": float(state.global_step)}
