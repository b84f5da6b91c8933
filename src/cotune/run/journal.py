"""Where a run is written down and counted, as protocols."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from cotune.run.evolution_log import Entries, EvolutionLog
from cotune.types import Purpose, Trajectory


class Journal(Protocol):
    """Where a run is written down (`cotune.run.run_dir.RunDir` is one)."""

    def event(self, kind: str, step: int, /, **fields: object) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None: ...

    def cut_back(self, step: int) -> None:
        """Forgets everything after a step: a resumed run writes it anew."""
        ...

    def evolution_log(self, step: int) -> EvolutionLog:
        """The log of the evolution before a step's rollouts, to be gone on with after a kill."""
        ...


class SilentJournal:
    """Writes and shows nothing: of the processes that only serve the first one, or where none is kept."""

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        pass

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None:
        pass

    def cut_back(self, step: int) -> None:
        pass

    def evolution_log(self, step: int) -> EvolutionLog:
        return EvolutionLog()


class Meter(Entries, Protocol):
    """Where rollouts are counted (`cotune.run.ledger.Ledger` is one)."""

    def begin_attempt(self, resumed_from: int | None) -> int: ...

    def set_step(self, step: int) -> None: ...

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None: ...
