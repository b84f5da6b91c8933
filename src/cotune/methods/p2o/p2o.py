"""P²O: joint policy and prompt optimisation (arXiv 2603.21877), Algorithm 1."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Literal

from cotune.methods.contract import TextRules
from cotune.methods.method import SOLVED_AT, Context, Cost, Evolution, Method, RunShape
from cotune.methods.p2o.hints import (
    HintOptions,
    HintPool,
    HintSearch,
    assign_hints,
    candidates,
    covering,
)
from cotune.methods.proposals import ProposalAccount
from cotune.methods.static import StaticStrategy
from cotune.methods.text_evolution import MINIBATCH, dev_count, read_fenced
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
    Assignment,
    Distillation,
    Metrics,
    Progress,
    Prompt,
    Section,
    Task,
    Trajectory,
)

# ---- hard-sample mining: the next epoch's hinted questions (Eq. 3)


@dataclass(slots=True)
class _Count:
    """A question's attempts in one epoch: its rollouts, except those that are not `Trajectory.judged`.

    Attributes:
        hinted: whether any attempt saw a hint.
        visits: groups that these attempts are of.
    """

    successes: int = 0
    hinted: bool = False
    visits: int = 0


class HardSamples:
    """Count successes by stable task id over an epoch.

    A question is hard in the next epoch if a group of its rollouts had fewer than `below` successes in this
    one; if a step spans two epochs and meets it twice, the mean over its groups counts. A question without attempts
    in the epoch keeps its status; rollouts that are not judged are none.

    Args:
        below: successes at which a question stops being hard; the paper's τ, 2 of K = 6 rollouts.
    """

    def __init__(self, below: int = 2) -> None:
        self._below = below
        self._hard: frozenset[str] = frozenset()
        self._counts: dict[str, _Count] = {}

    @property
    def hard(self) -> tuple[str, ...]:
        """Return the ids of the questions that are hard in this epoch, sorted."""
        return tuple(sorted(self._hard))

    def observe(self, trajectories: Iterable[Trajectory]) -> None:
        """Add a batch's rollouts to this epoch's counts."""
        groups = set[tuple[str, int]]()
        for trajectory in trajectories:
            if trajectory.judged:
                count = self._counts.setdefault(trajectory.task.id, _Count())
                group = (trajectory.task.id, trajectory.assignment.group)
                count.visits += group not in groups
                groups.add(group)
                count.successes += trajectory.reward >= SOLVED_AT
                count.hinted |= bool(trajectory.assignment.sampled.hint.strip())

    def close_epoch(self) -> dict[str, int]:
        """Set the hard questions of the next epoch from this epoch's counts, and reset the counts.

        Returns:
            how many questions are `hard` now, were `seen` in the epoch, are `newly_hard`, have `graduated`
            (hard before and not now), and of these were `solved_by_hint`: judged on rollouts under a hint,
            so that they may not yet be solved without one.
        """
        before = self._hard
        met = self._counts
        failed = {i for i, count in met.items() if count.successes < self._below * count.visits}
        self._hard = frozenset(failed | (before - met.keys()))
        self._counts = {}
        graduated = before - self._hard
        return {
            "hard": len(self._hard),
            "seen": len(met),
            "newly_hard": len(self._hard - before),
            "graduated": len(graduated),
            "solved_by_hint": sum(met[task_id].hinted for task_id in graduated),
        }

    def state_dict(self) -> State:
        counts = {i: list(astuple(count)) for i, count in self._counts.items()}
        return {"hard": list(self.hard), "counts": counts}

    def load_state_dict(self, state: State) -> None:
        self._hard = frozenset(state["hard"])
        self._counts = {i: _Count(*count) for i, count in state["counts"].items()}


@dataclass(frozen=True, kw_only=True)
class P2OOptions(Section):
    """P²O's options; defaults are the paper's, except `hints.show_answers`.

    Attributes:
        successes_below: tau as a count: a question with fewer successes in an epoch is hard in the next one.
        hints: the evolution of hints at the end of an epoch.
        distillation: how rollouts under a hint are weighted, which are trained on without it.
        hinted_per_group: how many rollouts of a hard question's group see a hint: "all", the paper's, or "half"; the
            question is then judged by the others, and keeps its hints until it is solved without them.
    """

    kind: Literal["p2o"] = "p2o"
    successes_below: int = 2
    hints: HintOptions = field(default_factory=HintOptions)
    distillation: Distillation = field(default_factory=Distillation)
    hinted_per_group: Literal["all", "half"] = "all"

    def __post_init__(self) -> None:
        if self.successes_below < 1:
            raise ValueError(f"successes_below is {self.successes_below}; expected at least 1")

    def hinted(self, group_size: int) -> int:
        """Return how many of a group's rollouts see a hint, the first ones; at least one."""
        return group_size if self.hinted_per_group == "all" else group_size - group_size // 2

    def judged(self, group_size: int) -> int:
        """Return how many of a group's rollouts judge a question with hints."""
        return group_size if self.hinted_per_group == "all" else group_size // 2


class P2O(StaticStrategy):
    """Run Algorithm 1 of P²O around an engine's policy update.

    Phase 1, every step: rollouts of a hard question are sampled under hints and trained on without
    them. Phase 2, at the end of an epoch: GEPA evolves hints on the questions that the epoch found
    hard, and assigns hints to each of them. The instruction does not change.

    A hint is never given to a question that it, or an ancestor, was derived from: it may carry the question's answer.
    """

    def __init__(self, options: P2OOptions, context: Context) -> None:
        super().__init__(context.instruction)
        self.options = options
        self.seed = context.seed
        self._tasks = {task.id: task for task in context.tasks}
        self._hard = HardSamples(options.successes_below)
        self._rules = TextRules.of_hints(context)
        self._description = context.description
        self._account = ProposalAccount("hint", read_fenced)
        self._pool: HintPool | None = None  # None before the first phase
        self._phases = 0
        self._epoch = 0
        self._batch = 0  # rollouts of the last batch

    @property
    def distillation(self) -> Distillation:
        return self.options.distillation

    # ---- Phase 1, every step: sample hard questions under hints, train on them without (Eq. 4)

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Assign the instruction to all rollouts, with hints added for sampling on hard questions."""
        hinted = self.options.hinted(group_size)
        hints: dict[str, tuple[str, ...]] = {}
        # Algorithm 2, step 2: each hard question draws a hint for each rollout, anew in each epoch.
        if self._pool is not None:
            hard = set(self._hard.hard)
            ids = [task.id for task in tasks if task.id in hard]
            hints = assign_hints(self._pool, ids, hinted, f"p2o/{self.seed}/assign/{self._epoch}")
        assignments = super().assign(tasks, group_size, progress)
        # x̃ = T(x, z) is sampled under; the gradient stays on x.
        return [
            replace(a, sampled=Prompt(a.sampled.instruction, hints[a.task.id][i % group_size]))
            if a.task.id in hints and i % group_size < hinted
            else a
            for i, a in enumerate(assignments)
        ]

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Count successes by question."""
        self._batch = len(trajectories)
        # Mining: in the paper's groups all rollouts judge a question, in half-hinted ones those without a hint.
        all_judge = self.options.hinted_per_group == "all"
        self._hard.observe(t for t in trajectories if all_judge or not t.assignment.sampled.hint)
        return {}

    # ---- Phase 2, at the end of an epoch: evolve the hints under the fixed policy

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run Phase 2 on the last epoch before an epoch's first step.

        The paper runs Phase 2 at the end of an epoch. It runs one step later here, so that a checkpoint saved
        after the epoch's last step is resumed with the phase still to come.

        Raises:
            EvolutionError: see `ProposalAccount.end_phase`.
            CotuneError: what the policy or the LLM raised; an LLMError is recorded instead.
        """
        if progress.epoch <= self._epoch:
            return {}
        self._epoch = progress.epoch
        # Eq. 3: the questions that are hard in the epoch that begins.
        counts = self._hard.close_epoch()
        record("hard_samples", epoch=progress.epoch, **counts)
        del counts["seen"]
        hard = [self._tasks[task_id] for task_id in self._hard.hard]
        # GEPA on the hard questions gives the pool Z with its scores on dev.
        self._pool = self.next_pool(hard, Evolution(progress, rollout, llm, record))
        if self._pool is not None:
            # All hints were derived from these questions.
            drawable = candidates(self._pool, self._hard.hard)
            counts["withheld"] = sum(not hints for hints in drawable.values())
        return {f"p2o/{name}": float(value) for name, value in counts.items()}

    def next_pool(self, hard: Sequence[Task], evolution: Evolution) -> HintPool | None:
        """Return the hints to draw from: a phase's, or what is left of the ones before.

        If too few questions are hard, these are none, or with `keep_if_skipped` the earlier ones. The earlier
        ones also stay if a phase cannot be afforded, or finds no hint because the LLM's budget is spent or no call
        succeeds.
        """
        options = self.options.hints
        before = self._pool
        if len(hard) < options.hard_set_min_count:
            pool = before if options.keep_if_skipped else None
            dropped = "" if pool is before else ", and the earlier ones are dropped"
            evolution.record(
                "notice",
                text=f"{len(hard)} hard questions, hard_set_min_count is {options.hard_set_min_count}: no "
                f"hints are evolved{dropped}",
            )
            return pool
        rollouts = options.evaluations(dev_count(len(hard), options.dev_size))
        rollouts_left = evolution.progress.rollouts_left
        # One batch is set aside: hints evolved after the last batch would never be used.
        if rollouts_left is not None and rollouts > rollouts_left - self._batch:
            affordable = max(0, rollouts_left - self._batch)
            evolution.record(
                "notice",
                text=f"a phase of {rollouts} evaluations is more than the {affordable} that "
                "rollout_budget leaves for one: no hints are evolved",
            )
            return before
        self._phases += 1
        search = HintSearch(
            hard,
            options,
            self.best_prompt().instruction,
            self._description,
            f"p2o/{self.seed}/hints/{evolution.progress.step}",
            evolution,
            self._account,
            self._rules,
        )
        pool = search.run(self._phases)
        search.end_phase()
        account = self._account
        unheard = bool(account.spent) or (account.asked > 0 and not account.answered)
        return before if unheard and len(pool.texts) == 1 else pool

    # ---- the result: hints are used in training only

    def best_hint(self) -> str:
        """Return the covering hint of the last phase with the highest mean dev score."""
        pool = self._pool
        cover = [] if pool is None else covering(pool)
        if pool is None or not cover:
            return ""
        return pool.texts[max(cover, key=pool.mean)]

    def state_dict(self) -> State:
        return super().state_dict() | {
            "hard": self._hard.state_dict(),
            "phases": self._phases,
            "health": self._account.state_dict(),
            "pool": None if self._pool is None else asdict(self._pool),
            "epoch": self._epoch,
            "batch": self._batch,
        }

    def load_state_dict(self, state: State) -> None:
        # Imported here, so that importing cotune stays light.
        from pydantic import TypeAdapter

        super().load_state_dict(state)
        self._hard.load_state_dict(state["hard"])
        self._phases = int(state["phases"])
        self._account.load_state_dict(state["health"])
        self._pool = TypeAdapter(HintPool | None).validate_python(state["pool"])
        self._epoch = int(state["epoch"])
        self._batch = int(state["batch"])


# ---- the method's entry in the registry


def check(options: P2OOptions, shape: RunShape) -> None:
    """Refuse options under which a hard question could never count as solved."""
    judged = options.judged(shape.group_size)
    if options.successes_below > judged:
        raise ValueError(
            f"strategy.successes_below is {options.successes_below}, but a question is judged by {judged} rollouts "
            f"of a group of {shape.group_size} and would stay hard forever; expected at most {judged}"
        )


def cost(options: P2OOptions, shape: RunShape) -> Cost:
    """Bound the rollouts and calls of hint evolution: a phase at each epoch's end before a step."""
    hints = options.hints
    phases = 0
    if shape.questions >= hints.hard_set_min_count:
        # An epoch may be shorter than a step.
        epochs = (shape.steps - 1) * shape.questions_per_step // shape.questions
        phases = min(shape.steps - 1, epochs)
    dev = dev_count(shape.questions, hints.dev_size)  # if all are hard
    each = hints.evaluations(dev)
    # A proposal costs at least the evaluation of a minibatch.
    calls = phases * math.ceil(each / MINIBATCH) if phases else 0
    return Cost(phases, {"evolve": phases * each}, calls, MINIBATCH)


METHOD = Method(
    options=P2OOptions,
    build=P2O,
    label="P²O",
    about="hints for hard questions, distilled into the policy",
    evolves="hints",
    check=check,
    cost=cost,
    schedule=lambda options: (
        "one comes after an epoch that leaves hints.hard_set_min_count, "
        f"{options.hints.hard_set_min_count}, hard questions"
    ),
    distillation=lambda options: options.distillation,
)
