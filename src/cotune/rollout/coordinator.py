"""What happens between a batch of tasks and its scored trajectories: the same in every engine.

The strategy and the LLM live on rank 0. The other ranks serve it: they roll out the share they are
sent, until rank 0 says that the batch is complete or that it failed.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cotune.errors import EngineError, EvolutionError
from cotune.protocols import LLM, Codec, Comm, Environment, Rewards, Sampler, State, Strategy
from cotune.rollout.comm import SingleProcess
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.rollout.metrics import trajectory_metrics
from cotune.rollout.resampling import Resampling, resampled
from cotune.run.evolution_log import EvolutionLog, LoggedPhase
from cotune.run.journal import Journal, Meter
from cotune.types import Assignment, Limits, Progress, Prompt, Purpose, Sampling, Task, Trajectory

STATE_SCHEMA = 1


@dataclass(frozen=True)
class RolloutSettings:
    """How rollouts are made.

    Attributes:
        limits: tokens and turns.
        temperature: of training and verification; evaluation is greedy.
        seed: the run's seed; draws are keyed by (seed, purpose, step, call, row).
        rows_per_call: rows a sampler continues at a time; bounds memory, changes no draw.
        context_tokens: what the policy can attend to, prompt included; None is unlimited.
        resample_rounds: how often groups without variance are replaced in a step at most
            (`cotune.rollout.resampling`); for strategies that do not read each question's group.
    """

    limits: Limits = field(default_factory=Limits)
    temperature: float = 1.0
    seed: int = 0
    rows_per_call: int = 512
    context_tokens: int | None = None
    resample_rounds: int = 0


@dataclass(frozen=True)
class _Command:
    """What rank 0 tells the others: "rollout", "gather", "done" or "stop"."""

    verb: str
    assignments: tuple[Assignment, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    message: str = ""


RollOutHere = Callable[[Sequence[Assignment], int, Sampling], list[Trajectory]]
"""Rolls this rank's assignments out, scored, in order; rows are counted from the second argument."""


class RolloutFailed(EngineError):
    """Raised on all ranks at once, since all exchange what became of their shares."""


class Coordinator:
    """Runs steps of a strategy: evolve if due, assign, roll out, observe.

    Args:
        strategy: consulted on rank 0 alone.
        environment, codec, sampler: one on every rank.
        llm: the optimizer; used on rank 0 alone.
        rewards: score in place of the environment, on every rank; None where it scores.
        journal, meter: written on rank 0 alone.
        roll_out: makes rollouts in place of the sampler's lock-step: an engine that has workers of
            its own for it.

    Attributes:
        gather: what every rank does at once where rank 0 asks for weights that are spread over them.
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        environment: Environment,
        codec: Codec,
        sampler: Sampler,
        llm: LLM,
        journal: Journal,
        meter: Meter,
        settings: RolloutSettings,
        comm: Comm | None = None,
        rewards: Rewards | None = None,
        roll_out: RollOutHere | None = None,
    ) -> None:
        self.strategy, self.environment, self.codec = strategy, environment, codec
        self.sampler, self.llm, self.settings = sampler, llm, settings
        self.journal, self.meter, self.rewards = journal, meter, rewards
        self.comm: Comm = comm or SingleProcess()
        self._roll_out_here = roll_out or self._in_lock_step
        self.gather: Callable[[], Any] = lambda: None
        self.step = 0
        self._calls: Counter[Purpose] = Counter()
        self._known: dict[str, Task] | None = None

    def train_batch(
        self,
        tasks: Sequence[Task],
        group_size: int,
        progress: Progress,
        before_rollout: Callable[[], None] | None = None,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """One step: `len(tasks)` groups of `group_size` rollouts, and the strategy's metrics.

        Every rank calls it with the same tasks and receives all trajectories, group after group; of
        other tasks where groups without variance were replaced.
        `before_rollout` runs on rank 0 after evolution (an engine's evaluation).
        """

        def work() -> tuple[list[Trajectory], dict[str, float]]:
            metrics = self.begin_batch(progress, before_rollout)
            trajectories = self._roll_out_groups(tasks, group_size, progress)
            if self.settings.resample_rounds:
                trajectories, done = self._resampled(trajectories, group_size, progress)
                metrics.update(done)
            metrics.update(self.end_batch(trajectories, group_size, progress))
            return trajectories, metrics

        return self.on_rank_zero(work)

    def begin_batch(
        self, progress: Progress, before_rollout: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """What comes before a step's rollouts: evolution where it is due; on rank 0.

        With `assign_batch` and `end_batch`, for an engine that makes the rollouts between by itself.
        """
        self.step, self._calls = progress.step, Counter()
        self.meter.set_step(progress.step)
        metrics = self._evolve(progress)
        if before_rollout is not None:
            before_rollout()
        return metrics

    def assign_batch(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """`group_size` assignments for each task, group after group, as the strategy decides; on rank 0."""
        assignments = self.strategy.assign(tasks, group_size, progress)
        if len(assignments) != len(tasks) * group_size:
            raise EngineError(
                f"{type(self.strategy).__name__}.assign gave {len(assignments)} assignments "
                f"for {len(tasks)} tasks × {group_size}"
            )
        return [self._whole(assignment) for assignment in assignments]

    def end_batch(
        self, trajectories: Sequence[Trajectory], group_size: int, progress: Progress
    ) -> dict[str, float]:
        """Shows a step's rollouts to the strategy and writes them down; on rank 0.

        Returns:
            The strategy's metrics and the batch's.
        """
        metrics = dict(self.strategy.observe(trajectories, progress, self._record))
        metrics.update(trajectory_metrics(trajectories, group_size))
        self.journal.trajectories(progress.step, "train", trajectories)
        return metrics

    def _roll_out_groups(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Trajectory]:
        """A group of each task as the strategy assigns it, group after group."""
        return self.rollout(self.assign_batch(tasks, group_size, progress), purpose="train")

    def _resampled(
        self, trajectories: list[Trajectory], group_size: int, progress: Progress
    ) -> tuple[list[Trajectory], dict[str, float]]:
        """The batch with groups without variance replaced, and what that took."""
        left = progress.rollouts_left
        settings = Resampling(
            self.environment.tasks("train"),
            self.settings.resample_rounds,
            f"{self.settings.seed}/resample/{progress.step}",
            None if left is None else left - len(trajectories),
        )
        return resampled(
            trajectories,
            group_size,
            lambda tasks: self._roll_out_groups(tasks, group_size, progress),
            settings,
        )

    def evolve(
        self, progress: Progress, before_rollout: Callable[[], None] | None = None
    ) -> dict[str, float]:
        """What `train_batch` does before its rollouts, for a run that makes none."""
        return self.on_rank_zero(lambda: self.begin_batch(progress, before_rollout))

    def _evolve(self, progress: Progress) -> dict[str, float]:
        """Evolves if due; what an attempt that was killed in it has paid for is not paid again."""
        log = self.journal.evolution_log(progress.step)
        phase = self.logged(log)
        try:
            metrics = self.strategy.evolve_if_due(progress, phase.rollout, phase, self._record)
        except EvolutionError:
            log.delete()  # the same answers would end it again
            raise
        phase.close()
        return dict(metrics)

    def logged(self, log: EvolutionLog, what: str = "evolution") -> LoggedPhase:
        """Rollouts and LLM calls from a log as far as it goes, then live; rank 0 only."""
        return LoggedPhase(
            log, self._roll_out, self.next_sampling, self.llm, self.meter, self._record, what
        )

    def evaluate(
        self, tasks: Sequence[Task], prompt: Prompt | None = None, instruction_id: str = ""
    ) -> list[Trajectory]:
        """Greedy rollouts, one a task; observes nothing.

        Args:
            tasks: the questions.
            prompt: what to evaluate under; the strategy's best by default.
            instruction_id: whose prompt it is, where one is given.
        """
        return self.on_rank_zero(lambda: self.evaluate_here(tasks, prompt, instruction_id))

    def evaluate_here(
        self, tasks: Sequence[Task], prompt: Prompt | None = None, instruction_id: str = ""
    ) -> list[Trajectory]:
        """`evaluate` for callers that already run on rank 0 while the others serve."""
        if prompt is None:
            prompt = self.strategy.best_prompt()
            instruction_id = self.strategy.best_instruction_id()
        assignments = [
            Assignment(task, prompt, prompt, instruction_id, group)
            for group, task in enumerate(tasks)
        ]
        return self.rollout(assignments, purpose="evaluate", greedy=True)

    def gather_here(self) -> Any:
        """What `gather` returns to rank 0, for callers that run there while the others serve."""
        self.comm.broadcast(_Command("gather"))
        return self.gather()

    def rollout(
        self, assignments: Sequence[Assignment], *, purpose: Purpose, greedy: bool = False
    ) -> list[Trajectory]:
        """Rolls out on all ranks; rank 0 only. See `contracts.Rollout`."""
        return self._roll_out(assignments, purpose, self.next_sampling(purpose, greedy))

    def next_sampling(self, purpose: Purpose, greedy: bool) -> Sampling:
        """How the next rollout call of a purpose samples."""
        # Counted by purpose, so that how often a run is evaluated changes none of its draws.
        self._calls[purpose] += 1
        return Sampling(
            temperature=0.0 if greedy else self.settings.temperature,
            stop=self.environment.stop,
            seed=stable_seed(self.settings.seed, purpose, self.step, self._calls[purpose]),
        )

    def _roll_out(
        self, assignments: Sequence[Assignment], purpose: Purpose, sampling: Sampling
    ) -> list[Trajectory]:
        command = _Command("rollout", tuple(map(self._whole, assignments)), sampling)
        started = time.monotonic()
        trajectories = self._share(self.comm.broadcast(command))
        self.count(purpose, trajectories, time.monotonic() - started)
        return trajectories

    def count(self, purpose: Purpose, trajectories: Sequence[Trajectory], seconds: float) -> None:
        """Enters rollouts in the ledger; `rollout` does so for its own."""
        generated = sum(t.generated_tokens for t in trajectories)
        self.meter.add_rollouts(purpose, len(trajectories), generated, seconds)

    def _whole(self, assignment: Assignment) -> Assignment:
        """The assignment with the columns of its task, which a strategy's saved state leaves out."""
        if assignment.task.columns:
            return assignment
        if self._known is None:
            self._known = {t.id: t for t in self.environment.tasks("train") if t.columns}
        known = self._known.get(assignment.task.id)
        return assignment if known is None else replace(assignment, task=known)

    def state_dict(self) -> State:
        return {
            "schema_version": STATE_SCHEMA,
            "step": self.step,
            "strategy": self.strategy.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        if state.get("schema_version") != STATE_SCHEMA:
            raise EngineError(
                f"the saved state has schema_version {state.get('schema_version')!r}; this version "
                f"of cotune reads {STATE_SCHEMA}: resume with the version that wrote it"
            )
        self.step = int(state["step"])
        self.strategy.load_state_dict(state["strategy"])

    def _record(self, kind: str, /, **fields: object) -> None:
        self.journal.event(kind, self.step, **fields)

    def on_rank_zero(self, work: Callable[[], Any]) -> Any:
        """Runs `work` on rank 0 while the others serve; all return its result or raise its error."""
        if self.comm.rank != 0:
            return self._serve()
        try:
            result = work()
        except RolloutFailed:
            raise  # on every rank already: nobody is left to hear of it
        except BaseException as error:
            self.comm.broadcast(_Command("stop", message=f"{type(error).__name__}: {error}"))
            raise
        self.comm.broadcast(_Command("done"))
        return self.comm.broadcast(result)

    def _serve(self) -> Any:
        while True:
            command: _Command = self.comm.broadcast(None)
            if command.verb == "done":
                return self.comm.broadcast(None)
            if command.verb == "stop":
                raise EngineError(f"rank 0 stopped the run: {command.message}")
            if command.verb == "gather":
                self.gather()
            else:
                self._share(command)

    def _share(self, command: _Command) -> list[Trajectory]:
        """Rolls out this rank's share of a command; returns all ranks' trajectories in order."""
        size, rank = self.comm.size, self.comm.rank
        per_rank = -(-len(command.assignments) // size)
        first = min(rank * per_rank, len(command.assignments))
        mine = command.assignments[first : first + per_rank]
        try:
            outcome = self._roll_out_here(mine, first, command.sampling)
        except Exception as error:
            if size > 1:
                self._raise_if_failed(self.comm.gather(f"{type(error).__name__}: {error}"))
            raise
        shares = self.comm.gather(outcome)
        self._raise_if_failed(shares)
        return [trajectory for share in shares for trajectory in share]

    @staticmethod
    def _raise_if_failed(shares: Sequence[Any]) -> None:
        failed = [f"rank {r}: {s}" for r, s in enumerate(shares) if isinstance(s, str)]
        if failed:
            raise RolloutFailed("a rollout failed; " + "; ".join(failed))

    def _in_lock_step(
        self, assignments: Sequence[Assignment], first_row: int, sampling: Sampling
    ) -> list[Trajectory]:
        done: list[Trajectory] = []
        # One session on every rank, with rows or without: a sampler may need all ranks in step.
        session = self.sampler.open(sampling)
        try:
            for start in range(0, len(assignments), self.settings.rows_per_call):
                part = assignments[start : start + self.settings.rows_per_call]
                episodes = new_episodes(
                    part,
                    self.environment,
                    self.codec,
                    self.settings.limits,
                    first_row + start,
                    self.settings.context_tokens,
                )
                done += run_episodes(episodes, self.environment, session, self.rewards)
        finally:
            session.close()
        return done


def stable_seed(*parts: object) -> int:
    """A 63-bit seed from printable parts; the same in every process and Python version."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
