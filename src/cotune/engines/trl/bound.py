"""A run's trainer, whichever of TRL's it is, and a row of its metrics."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from transformers import Trainer, TrainerState

from cotune.errors import EngineError

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


class Bound(Generic[AnyTrainer]):
    """A run that belongs to a trainer, from when that is made."""

    _trainer: AnyTrainer | None = None

    @property
    def bound(self) -> bool:
        """Return whether there is a trainer."""
        return self._trainer is not None

    @property
    def trainer(self) -> AnyTrainer:
        if self._trainer is None:
            raise EngineError("no trainer yet: call bind(trainer), or train, before evaluating")
        return self._trainer


def metrics_row(logs: Mapping[str, Any] | None, state: TrainerState) -> dict[str, float] | None:
    """The numbers that a trainer logs of an optimizer step; None where it logs something else."""
    if logs is None or "loss" not in logs:
        return None
    numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
    return {**numbers, "optimizer_step": float(state.global_step)}
