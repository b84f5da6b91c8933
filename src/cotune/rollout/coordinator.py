"""The phases of a training step that every engine shares: evolve, assign, roll out, observe.

The strategy and the LLM live on rank 0. During a phase the other ranks serve rank 0: they roll out
their share of each batch until rank 0 reports that the phase is done or has failed.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotune.errors import EngineError, EvolutionError
from cotune.methods.context_distillation import needs_token_weights, successes_teach
from cotune.protocols import LLM, Codec, Comm, Environment, Rewards, Sampler, State, Strategy
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.rollout.metrics import trajectory_metrics, without_variance
from cotune.run.events import equal_rewards_notice
from cotune.run.record import CachedLLM, Record, llm_state, restore_llm
from cotune.types import Assignment, Limits, Progress, Prompt, Purpose, Sampling, Task, Trajectory
from cotune.utils.progress import report

STATE_SCHEMA = 3


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of rollouts.

    Attributes:
        temperature: for training and verification; evaluation is greedy.
        seed: the run's seed; draws are keyed by (seed, purpose, step, call, row).
        rows_per_call: rows that are rolled out and scored at a time; bounds memory, changes no draw.
        context_tokens: tokens that the policy can attend to, prompt included; None is unlimited.
    """

    limits: Limits = field(default_factory=Limits)
    temperature: float = 1.0
    seed: int = 0
    rows_per_call: int = 512
    context_tokens: int | None = None


class SingleProcess:
    """The comm of a run in one process."""

    rank = 0
    size = 1

    def broadcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass(frozen=True)
class _Command:
    """A message from rank 0 to the others; `verb` is "rollout", "gather", "done" or "stop"."""

    verb: str
    assignments: tuple[Assignment, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    message: str = ""


@dataclass(frozen=True)
class Batch:
    """The rollouts of a step, on every rank.

    Attributes:
        trajectories: group after group; `group_size` of each question.
        metrics: the strategy's and the batch's.
        flat_groups: indices of the groups whose rewards are all equal: they have no advantage.
        needs_token_weights: whether distillation changes the loss of any of them.
    """

    trajectories: list[Trajectory]
    metrics: dict[str, float]
    flat_groups: frozenset[int] = frozenset()
    needs_token_weights: bool = False


RollOutHere = Callable[[Sequence[Assignment], int, Sampling], list[Trajectory]]
"""Roll out and score this rank's assignments in order; rows count from the second argument."""


class RolloutFailed(EngineError):
    """Raised on every rank, of several, if a rollout failed on any of them."""


class Coordinator:
    """Run a training step up to the update of the weights, in any number of processes.

    `step` runs its phases in order. An engine whose own loop calls at several places of a step (veRL's) calls
    the phases one by one. Every rank calls every phase: rank 0 does the work, the others serve its
    rollouts, and all return the same result. On rank 0 a phase may call another phase. Only rank 0 consults the
    strategy, asks the LLM and writes the record.

    Args:
        comm: connects the ranks; None for a single process.
        rewards: score in place of the environment; None if the environment scores.
        roll_out: rolls out in place of the sampler, for an engine that has its own rollout workers.

    Attributes:
        current_step: the step that rollouts and events count under.
        gather: called on every rank when rank 0 asks for weights that are sharded over the ranks.
    """

    def __init__(
        self,
        *,
        strategy: Strategy,
        environment: Environment,
        codec: Codec,
        sampler: Sampler,
        llm: LLM,
        record: Record,
        settings: RolloutSettings,
        comm: Comm | None = None,
        rewards: Rewards | None = None,
        roll_out: RollOutHere | None = None,
    ) -> None:
        self.strategy = strategy
        self.environment = environment
        self.codec = codec
        self.sampler = sampler
        self.llm = llm
        self.settings = settings
        self.record = record
        self.rewards = rewards
        self.comm: Comm = comm or SingleProcess()
        self.gather: Callable[[], Any] = lambda: None
        self.current_step = 0
        self._roll_out_here = roll_out or self._run_episodes
        self._leads = False  # rank 0 is inside a phase and the others serve
        self._calls: Counter[Purpose] = Counter()
        self._purpose: Purpose = ""  # of the rollouts in progress; rank 0 only

    def step(
        self,
        tasks: Sequence[Task],
        group_size: int,
        progress: Callable[[], Progress],
        before_rollout: Callable[[], None] | None = None,
    ) -> Batch:
        """Evolve, assign, roll out, observe: everything of a step but the update of the weights.

        Args:
            progress: returns the step's progress; evolution changes the rollouts that are left.
            before_rollout: called on rank 0 after an evolution, such as an evaluation.
        """
        # 1. The LLM rewrites instructions or proposes hints, in steps where that is due.
        metrics = self.evolve(progress())
        if before_rollout is not None:
            self.on_rank_zero(before_rollout)
        # 2. The strategy decides which prompt each rollout is sampled under and trained on.
        evolved = progress()
        assignments = self.assign(tasks, group_size, evolved)
        # 3. The policy answers and the environment scores.
        trajectories = self.rollout(assignments)
        # 4. The strategy credits its prompts with the rewards.
        metrics |= self.observe(trajectories, group_size, evolved)
        # 5. In a last stage, only successes keep their teacher.
        trajectories = successes_teach(trajectories)
        return Batch(
            trajectories,
            metrics,
            frozenset(without_variance([t.reward for t in trajectories], group_size)),
            needs_token_weights(trajectories, self.strategy.distillation),
        )

    # ---- the phases of a step

    def evolve(self, progress: Progress) -> dict[str, float]:
        """Begin a step: let the strategy evolve if it is due. Return its metrics.

        Replies that an interrupted attempt was given are used again, not paid for twice.
        """

        def work() -> dict[str, float]:
            self.current_step = progress.step
            self._calls = Counter()
            self.record.step = progress.step
            llm = CachedLLM(self.llm, self.record, progress.step)
            try:
                return dict(
                    self.strategy.evolve_if_due(progress, self.rollout, llm, self._record_event)
                )
            except EvolutionError:
                # A resume that recalls them would fail again.
                self.record.replies.forget(progress.step)
                raise

        return self.on_rank_zero(work)

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return `group_size` assignments for each task, group after group, from the strategy."""

        def work() -> list[Assignment]:
            assignments = self.strategy.assign(tasks, group_size, progress)
            if len(assignments) != len(tasks) * group_size:
                raise EngineError(
                    f"{type(self.strategy).__name__}.assign gave {len(assignments)} assignments "
                    f"for {len(tasks)} tasks × {group_size}"
                )
            return assignments

        return self.on_rank_zero(work)

    def rollout(
        self, assignments: Sequence[Assignment], *, purpose: Purpose = "train", greedy: bool = False
    ) -> list[Trajectory]:
        """Roll assignments out under the current policy. Return one scored trajectory each."""
        return self.on_rank_zero(
            lambda: self._roll_out(assignments, purpose, self.next_sampling(purpose, greedy))
        )

    def observe(
        self, trajectories: Sequence[Trajectory], group_size: int, progress: Progress
    ) -> dict[str, float]:
        """Show a step's rollouts to the strategy and record them. Return its metrics and the batch's."""

        def work() -> dict[str, float]:
            metrics = dict(self.strategy.observe(trajectories, progress, self._record_event))
            metrics.update(trajectory_metrics(trajectories, group_size))
            self.record.rollouts(progress.step, "train", trajectories)
            if progress.step == 1 and (notice := equal_rewards_notice(trajectories)):
                self._record_event("notice", text=notice)
            return metrics

        return self.on_rank_zero(work)

    def evaluate(
        self, tasks: Sequence[Task], prompt: Prompt | None = None, instruction_id: str = ""
    ) -> list[Trajectory]:
        """Roll out greedily, once per task, without showing the strategy anything.

        Args:
            prompt: what to evaluate under, with the instruction of the id; None is the strategy's best prompt.
        """

        def work() -> list[Trajectory]:
            chosen = prompt or self.strategy.best_prompt()
            name = instruction_id if prompt else self.strategy.best_instruction_id()
            assignments = [
                Assignment(task, chosen, chosen, name, group) for group, task in enumerate(tasks)
            ]
            return self.rollout(assignments, purpose="evaluate", greedy=True)

        return self.on_rank_zero(work)

    # ---- shared by phases and engines

    def gather_here(self) -> Any:
        """Call `gather` on all ranks and return rank 0's result; for use in a phase on rank 0."""
        self.comm.broadcast(_Command("gather"))
        return self.gather()

    def next_sampling(self, purpose: Purpose, greedy: bool = False) -> Sampling:
        """Return the sampling settings of the next rollout call of a purpose; rank 0 only."""
        # Counted per purpose, so that evaluating more often changes no other draw.
        self._calls[purpose] += 1
        seed = stable_seed(self.settings.seed, purpose, self.current_step, self._calls[purpose])
        temperature = 0.0 if greedy else self.settings.temperature
        # Environments draw alike in all calls whose scores are compared: of evaluations, and of an evolution.
        episode_seed = seed
        if not temperature:
            episode_seed = 0
        elif purpose == "evolve":
            episode_seed = stable_seed(self.settings.seed, purpose, self.current_step)
        return Sampling(temperature, self.environment.stop, seed, episode_seed)

    def count(self, purpose: Purpose, trajectories: Sequence[Trajectory], seconds: float) -> None:
        """Record the cost of rollouts. `rollout` does this itself; rank 0 only."""
        generated = sum(t.generated_tokens for t in trajectories)
        self.record.count(purpose, len(trajectories), generated, seconds)

    def state_dict(self) -> State:
        llm = llm_state(self.llm)
        return {
            "schema_version": STATE_SCHEMA,
            "step": self.current_step,
            "strategy": self.strategy.state_dict(),
            **({} if llm is None else {"llm": llm}),
        }

    def load_state_dict(self, state: State) -> None:
        if state.get("schema_version") != STATE_SCHEMA:
            raise EngineError(
                f"the saved state has schema_version {state.get('schema_version')!r}; this version "
                f"of cotune reads {STATE_SCHEMA}: resume with the version that wrote it"
            )
        self.current_step = int(state["step"])
        self.strategy.load_state_dict(state["strategy"])
        if "llm" in state:
            restore_llm(self.llm, state["llm"])

    def on_rank_zero(self, work: Callable[[], Any]) -> Any:
        """Run `work` on rank 0 while the others serve; all return its result, or raise.

        All ranks call it together. If it fails, rank 0 raises its error, the others an EngineError. Within `work` it
        runs its argument directly.
        """
        if self._leads:
            return work()
        if self.comm.rank != 0:
            return self._serve()
        self._leads = True
        try:
            result = work()
        except RolloutFailed:
            raise  # every rank raises it
        except BaseException as error:
            self.comm.broadcast(_Command("stop", message=f"{type(error).__name__}: {error}"))
            raise
        finally:
            self._leads = False
        self.comm.broadcast(_Command("done"))
        return self.comm.broadcast(result)

    def _record_event(self, kind: str, /, **fields: object) -> None:
        self.record.event(kind, self.current_step, **fields)

    def _roll_out(
        self, assignments: Sequence[Assignment], purpose: Purpose, sampling: Sampling
    ) -> list[Trajectory]:
        command = _Command("rollout", tuple(assignments), sampling)
        started = time.monotonic()
        self._purpose = purpose
        trajectories = self._share(self.comm.broadcast(command))
        self.count(purpose, trajectories, time.monotonic() - started)
        return trajectories

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
        """Roll out this rank's share of a command. Return all ranks' trajectories in order."""
        size = self.comm.size
        rank = self.comm.rank
        per_rank = -(-len(command.assignments) // size)
        first = min(rank * per_rank, len(command.assignments))
        share = command.assignments[first : first + per_rank]
        failure: Exception | None = None
        outcome: Any
        try:
            outcome = self._roll_out_here(share, first, command.sampling)
        except Exception as error:
            if size == 1:
                raise
            failure = error
            outcome = f"{type(error).__name__}: {error}"
        shares = self.comm.gather(outcome)
        failed = [f"rank {r}: {s}" for r, s in enumerate(shares) if isinstance(s, str)]
        if failed:
            raise RolloutFailed("a rollout failed; " + "; ".join(failed)) from failure
        return [trajectory for share in shares for trajectory in share]

    def _run_episodes(
        self, assignments: Sequence[Assignment], first_row: int, sampling: Sampling
    ) -> list[Trajectory]:
        trajectories: list[Trajectory] = []

        def report_finished(count: int) -> None:
            report(self._purpose, len(trajectories) + count, len(assignments))

        # One session on every rank, even on one without rows: a sampler may need all ranks in step.
        session = self.sampler.open(sampling)
        try:
            for start in range(0, len(assignments), self.settings.rows_per_call):
                part = assignments[start : start + self.settings.rows_per_call]
                report_finished(0)
                episodes = new_episodes(
                    part,
                    self.environment,
                    self.codec,
                    self.settings.limits,
                    first_row + start,
                    self.settings.context_tokens,
                    sampling.episode_seed,
                )
                trajectories += run_episodes(
                    episodes, self.environment, session, self.rewards, report_finished
                )
        finally:
            session.close()
        return trajectories


def stable_seed(*parts: object) -> int:
    """Return a 63-bit seed from printable parts; the same in every process and Python version."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def turn_seed(seed: int, row: int, place: int) -> int:
    """Return the 31-bit seed of a turn that starts at a place of a row; it depends on nothing beside it."""
    return stable_seed(seed, row, place) % 2**31
