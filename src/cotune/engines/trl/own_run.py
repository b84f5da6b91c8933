"""The run folder of a trainer that is not ours."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cotune.errors import ConfigError
from cotune.protocols import State
from cotune.run.console import RunJournal, describe_event
from cotune.run.evolution_log import EvolutionLog
from cotune.run.json_files import plain, write_atomic
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from cotune.types import Purpose, Trajectory

_FIXED = ("seed", "environment", "instruction", "limits", "rewards", "strategy", "batch")
_TRAJECTORIES_EVERY = 10  # steps between files of training rollouts, as in a run file
_WARNINGS = ("notice", "proposal_failed")
_DETAILS = ("hint_progress",)  # several a phase
_log = logging.getLogger("cotune")


class LibraryRun:
    """Journal, meter and ledger in one; the folder is opened when training begins.

    What happens before training (a trainer's own evaluation, say) is neither written down nor
    counted. What an evolution brought is said by the logger "cotune", a line each.

    Args:
        folder: the run folder.
        config: plain data for its run.yaml; a resume needs the same of what `_FIXED` names.
        total_steps: the run's rollout batches.
    """

    def __init__(self, folder: Path, config: State, total_steps: int) -> None:
        self._folder, self._config, self._total_steps = folder, config, total_steps
        self._journal: RunJournal | None = None
        self._ledger: Ledger | None = None

    def begin_attempt(self, resumed_from: int | None) -> int:
        """Makes the folder, or opens it to go on from a step.

        Raises:
            ConfigError: a fresh run into a folder that holds one, a resume without one, or with
                other settings than it was begun with.
        """
        self._close()
        run = self._created() if resumed_from is None else self._opened()
        self._journal = RunJournal(run, Console(quiet=True), self._total_steps, _TRAJECTORIES_EVERY)
        self._ledger = Ledger(run.ledger_path)
        return self._ledger.begin_attempt(resumed_from)

    def finish(self, step: int, instruction_id: str, instruction: str) -> None:
        """Ends the run: keeps its best instruction in best/instruction.txt."""
        best = RunDir(self._folder, attempt=1).best_path
        best.mkdir(exist_ok=True)
        write_atomic(best / "instruction.txt", instruction + "\n")
        self.event("run_finished", step, instruction_id=instruction_id, instruction=instruction)
        _log.info(
            "step %d: trained; best instruction %s, run folder %s",
            step,
            instruction_id,
            self._folder,
        )

    # ---- the journal

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        if self._journal is not None:
            self._journal.event(kind, step, **fields)
            _say(kind, step, fields)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if self._journal is not None:
            self._journal.metrics(step, values)

    def trajectories(self, step: int, purpose: str, trajectories: Sequence[Trajectory]) -> None:
        if self._journal is not None:
            self._journal.trajectories(step, purpose, trajectories)

    def cut_back(self, step: int) -> None:
        if self._journal is not None:
            self._journal.cut_back(step)

    def evolution_log(self, step: int) -> EvolutionLog:
        return EvolutionLog() if self._journal is None else self._journal.evolution_log(step)

    # ---- the meter

    def set_step(self, step: int) -> None:
        if self._ledger is not None:
            self._ledger.set_step(step)

    def add_rollouts(
        self, purpose: Purpose, rollouts: int, generated_tokens: int, seconds: float = 0.0
    ) -> None:
        if self._ledger is not None:
            self._ledger.add_rollouts(purpose, rollouts, generated_tokens, seconds)

    def last_entry(self) -> int:
        return 0 if self._ledger is None else self._ledger.last_entry()

    def adopt(self, after: int, last: int) -> None:
        if self._ledger is not None:
            self._ledger.adopt(after, last)

    # ---- the LLM's account

    def reserve(self, worst_case: float, limit: float | None, model: str = "") -> int:
        return self._open_ledger().reserve(worst_case, limit, model)

    def settle(
        self,
        reservation: int,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        cost: float,
        error: str = "",
        estimated: bool = False,
        seconds: float = 0.0,
    ) -> None:
        self._open_ledger().settle(
            reservation,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost=cost,
            error=error,
            estimated=estimated,
            seconds=seconds,
        )

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            raise RuntimeError("an LLM is asked only while training runs")
        return self._ledger

    def _created(self) -> RunDir:
        try:
            return RunDir.create(self._folder, self._config)
        except ConfigError:
            raise ConfigError(
                f"{self._folder}: holds an earlier run; go on with it by "
                "trainer.train(resume_from_checkpoint=True), or set another output_dir in "
                "GRPOConfig"
            ) from None

    def _opened(self) -> RunDir:
        if not RunDir.is_run(self._folder):
            raise ConfigError(
                f"{self._folder}: the checkpoint's run folder is not there (no run.yaml); put it "
                "back, or train from the start"
            )
        run = RunDir.open(self._folder)
        before, now = run.read_config(), plain(self._config, "config")
        for name in _FIXED:
            if before.get(name) != now.get(name):
                raise ConfigError(
                    f"{name} is {now.get(name)!r}, but the run in {self._folder} was begun with "
                    f"{before.get(name)!r}; a resume needs the same"
                )
        return run

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._ledger = self._journal = None


def _say(kind: str, step: int, fields: Mapping[str, object]) -> None:
    """Logs an event that a person would want to hear of; model text as the console shows it."""
    line = describe_event(kind, fields)
    if kind == "evolution":
        line = (
            f"evolution: {fields['accepted']} of {fields['proposed']} proposals accepted, "
            f"{fields['verified']} verified; population of {fields['population']}"
        )
    if line:
        level = logging.DEBUG if kind in _DETAILS else logging.INFO
        level = logging.WARNING if kind in _WARNINGS else level
        _log.log(level, "step %d: %s", step, Text.from_markup(line).plain)
