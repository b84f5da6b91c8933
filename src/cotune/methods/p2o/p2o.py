"""P²O: joint policy and prompt optimisation (arXiv 2603.21877), Algorithm 1."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from cotune.methods.group_plan import Groups, drawn_count
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.p2o.hard_samples import HardSamples
from cotune.methods.p2o.hint_draws import Given, HintDraws, check_lengths, check_strata
from cotune.methods.p2o.hint_evolution import HintEvolution
from cotune.methods.p2o.hint_rules import HintRules
from cotune.methods.p2o.hints import HintOptions, HintPool, covering, withheld
from cotune.methods.static import StaticStrategy
from cotune.methods.text_evolution import SOLVED_AT, Judge, dev_count, least_budget
from cotune.protocols import LLM, Recorder, Rollout, State, Strategy
from cotune.types import (
    Assignment,
    Choice,
    Distillation,
    Metrics,
    Progress,
    Prompt,
    Purpose,
    Standing,
    Task,
    Trajectory,
)


@dataclass(frozen=True, kw_only=True)
class P2OOptions:
    """P²O's options; defaults are the paper's, except `hints.show_answers`.

    Attributes:
        successes_below: tau as a count: a question with fewer successes in an epoch is hard in
            the next one.
        solved_at: the lowest reward that counts as a success, in mining and for hints.
        hints: the evolution of hints at the end of an epoch.
        distillation: how rollouts under a hint are weighted, which are trained on without it.
        hinted_per_group: how many rollouts of a hard question's group see a hint. "all" is the
            paper's; with the others the group compares rollouts with and without one. In a mixed group
            (`methods.group_plan`), this refers to the half under the drawn instruction.
        same_hint: one hint for all hinted rollouts of a group (an ablation).
        judged_on: the rollouts by which a question with hints is judged: "all" of its group, which
            in the paper are all hinted; or the "plain" ones, so that it keeps its hints until it
            is solved without them.
        screen: whether questions that the epoch found hard are tried once more before a phase, under the
            best instruction, as `hints.scoring` says. Questions solved this way are not hard; if they are
            more than half, the phase is skipped. The phase reuses these rollouts if they are greedy.
        fixed_hints: hints by the stratum of the questions they are for ("" for all other strata). They
            stay as they are, and no hints evolve; comparisons of what hints teach need the same ones.
        given: the hints that hard questions get. "own" is the method; the others are controls: hints of
            "other" questions, "random" text of the same length, or "none", at the same cost.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["p2o"] = "p2o"
    successes_below: int = 2
    solved_at: float = SOLVED_AT
    hints: HintOptions = field(default_factory=HintOptions)
    distillation: Distillation = field(default_factory=Distillation)
    hinted_per_group: Literal["all", "all_but_one", "half"] = "all"
    same_hint: bool = False
    judged_on: Literal["all", "plain"] = "all"
    screen: bool = False
    fixed_hints: dict[str, list[str]] | None = None
    given: Given = "own"

    def __post_init__(self) -> None:
        if self.successes_below < 1:
            raise ValueError(f"successes_below is {self.successes_below}; expected at least 1")
        if self.fixed_hints is not None and not any(self.fixed_hints.values()):
            raise ValueError("fixed_hints has no hint; expected some, or null to evolve them")

    def hinted(self, group_size: int, groups: Groups = "own") -> int:
        """Return how many of a group's rollouts see a hint, the first ones; at least one."""
        drawn = drawn_count(groups, group_size)
        plain = {"all": 0, "all_but_one": 1, "half": drawn // 2}[self.hinted_per_group]
        return max(1, drawn - plain)

    def judged(self, group_size: int, groups: Groups = "own") -> int:
        """Return how many of a group's rollouts judge a question with hints."""
        if self.judged_on == "all":
            return group_size
        return group_size - self.hinted(group_size, groups)


class P2O:
    """Run Algorithm 1 of P²O around an engine's policy update and another strategy.

    Phase 1, every step: rollouts of a hard question are sampled under hints and trained on without
    them. Phase 2, at the end of an epoch: GEPA evolves hints on the questions that the epoch found
    hard, and assigns hints to each of them. The other strategy chooses the instruction:
    `StaticStrategy` gives the paper's method, `Inspo` both methods composed.

    A hint is never given to a question that it, or an ancestor, was derived from: it may carry the
    question's answer.

    Args:
        options: the method's options.
        context: the strategy's other inputs.
        base: decides the instruction of every rollout; None keeps the initial one.
        groups: the base's group plan.
    """

    def __init__(
        self,
        options: P2OOptions,
        context: Context,
        base: Strategy | None = None,
        groups: Groups = "own",
    ) -> None:
        self.base = base or StaticStrategy(context.instruction)
        self._groups: Groups = groups
        self.options, self.seed = options, context.seed
        self._tasks = {task.id: task for task in context.tasks}
        check_strata(options.fixed_hints or {}, context.tasks)
        check_lengths(options.fixed_hints or {}, context)
        self._hard = HardSamples(options.successes_below, options.solved_at)
        rules = HintRules(
            max_chars=options.hints.max_chars,
            count_tokens=context.count_tokens,
            max_tokens=context.max_tokens,
            control_tokens=tuple(context.control_tokens),
            equal=context.equal,
        )
        self._evolution = HintEvolution(
            rules, options.hints, self.seed, context.description, options.solved_at
        )
        self._pool: HintPool | None = None
        self._epoch = 0
        self._batch = 0  # rollouts of the last batch

    @property
    def distillation(self) -> Distillation:
        return self.options.distillation

    @property
    def checks_uplift(self) -> bool:
        return getattr(self.base, "checks_uplift", False)

    # ---- Phase 2

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the base's own evolution and, before an epoch's first step, Phase 2 on the last epoch.

        Raises:
            EvolutionError: see `LLMHealth.end_phase`.
        """
        counted = _Counted(rollout)
        metrics = dict(self.base.evolve_if_due(progress, counted, llm, record))
        if progress.epoch > self._epoch:
            self._epoch = progress.epoch
            if progress.rollouts_left is not None:
                left = progress.rollouts_left - counted.rollouts
                progress = replace(progress, rollouts_left=left)
            metrics |= self._evolve_hints(progress, rollout, llm, record)
        return metrics

    def _evolve_hints(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        trend = self._hard.close_epoch()
        counts = {
            "hard": len(trend.hard),
            "newly_hard": trend.newly_hard,
            "graduated": trend.graduated,
            "solved_by_hint": trend.solved_by_hint,
        }
        record("hard_samples", epoch=progress.epoch, seen=trend.seen, **counts)
        if self.options.fixed_hints is not None:
            return {f"p2o/{name}": float(value) for name, value in counts.items()}
        hard = [self._tasks[task_id] for task_id in trend.hard]
        # Reserve one batch: hints evolved after the last batch would never be used.
        left = None if progress.rollouts_left is None else progress.rollouts_left - self._batch
        screened = self._screen(hard, rollout, record, left)
        self._pool = self._evolution.run(
            hard,
            instruction=self.base.best_prompt().instruction,
            step=progress.step,
            rollout=rollout,
            llm=llm,
            record=record,
            affordable=None if left is None else left - len(hard) * self.options.screen,
            before=self._pool,
            known=screened,
        )
        if screened:
            solved_at = self.options.solved_at
            solved = [i for i, t in screened.items() if t.reward >= solved_at]
            self._hard.remove(solved)
            counts["screened_out"] = len(solved)
        if self._pool is not None:
            counts["withheld"] = withheld(self._pool, self._hard.hard)
        return {f"p2o/{name}": float(value) for name, value in counts.items()}

    def _screen(
        self, hard: Sequence[Task], rollout: Rollout, record: Recorder, affordable: int | None
    ) -> dict[str, Trajectory]:
        """Try hard questions under the best instruction; return the rollouts by question.

        None are made if the phase would be skipped: too few questions, or too few rollouts.
        """
        hints = self.options.hints
        if not self.options.screen or len(hard) < hints.hard_set_min_count:
            return {}
        dev = dev_count(len(hard), hints.dev_size)
        cost = hints.evaluations(dev)
        if cost < least_budget(dev, hints.minibatch):
            return {}
        if affordable is not None and len(hard) + cost > affordable:
            return {}
        instruction = self.base.best_prompt().instruction
        judge = Judge(
            lambda hint: Prompt(instruction, hint), rollout, record, scoring=hints.scoring
        )
        return {t.task.id: t for t in judge.evaluate([("", hard)])[0]}

    # ---- Phase 1

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return the base's assignments, with hints added for sampling on hard questions."""
        hinted = self.options.hinted(group_size, self._groups)
        hints = self._hints([task.id for task in tasks], hinted)
        assignments = self.base.assign(tasks, group_size, progress)
        return [
            self._under_hint(a, hints[a.task.id][i % group_size])
            if a.task.id in hints and i % group_size < hinted
            else a
            for i, a in enumerate(assignments)
        ]

    def _hints(self, task_ids: Sequence[str], count: int) -> dict[str, tuple[str, ...]]:
        """Draw `count` hints for each of the questions that is hard (Algorithm 2)."""
        options, hard = self.options, {id: self._tasks[id] for id in self._hard.hard}
        tasks = [hard[task_id] for task_id in task_ids if task_id in hard]
        draws = HintDraws(options.given, options.same_hint, self._pool, options.fixed_hints)
        key = f"p2o/{self.seed}/assign/{self._epoch}"
        return draws.draw(tasks, list(hard.values()), count, key)

    def _under_hint(self, assignment: Assignment, hint: str) -> Assignment:
        return replace(assignment, sampled=Prompt(assignment.sampled.instruction, hint))

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Count successes by question; the base credits its instructions."""
        metrics = dict(self.base.observe(trajectories, progress, record))
        self._batch = len(trajectories)
        self._hard.observe(self._judged(trajectories))
        return metrics

    def requests(self, progress: Progress) -> Sequence[str]:
        """Return the base strategy's requests; those for hints need rollouts of the phase itself."""
        requests: Callable[[Progress], Sequence[str]] | None = getattr(self.base, "requests", None)
        return () if requests is None else requests(progress)

    def _judged(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return the rollouts that decide whether a question is hard."""
        if self.options.judged_on == "all":
            return list(trajectories)
        return [t for t in trajectories if not t.assignment.sampled.hint]

    def best_prompt(self) -> Prompt:
        """Return the base's best prompt; hints are used in training only."""
        return self.base.best_prompt()

    def best_instruction_id(self) -> str:
        return self.base.best_instruction_id()

    def best_hint(self) -> str:
        """Return the covering hint of the last phase with the highest mean dev score."""
        pool = self._pool
        texts = covering(pool) if pool is not None else []
        if pool is None or not texts:
            return ""
        return pool.texts[max(texts, key=pool.mean)]

    def choice(self) -> Choice | None:
        return getattr(self.base, "choice", lambda: None)()

    def settle(self, instruction_id: str) -> None:
        if settle := getattr(self.base, "settle", None):
            settle(instruction_id)

    def standings(self) -> list[Standing]:
        return getattr(self.base, "standings", list[Standing])()

    def state_dict(self) -> State:
        return {
            "base": self.base.state_dict(),
            "hard": self._hard.state_dict(),
            "evolution": self._evolution.state_dict(),
            "pool": None if self._pool is None else self._pool.state_dict(),
            "epoch": self._epoch,
            "batch": self._batch,
        }

    def load_state_dict(self, state: State) -> None:
        self.base.load_state_dict(state["base"])
        self._hard.load_state_dict(state["hard"])
        self._evolution.load_state_dict(state["evolution"])
        pool = state["pool"]
        self._pool = None if pool is None else HintPool.from_state(pool)
        self._epoch, self._batch = int(state["epoch"]), int(state["batch"])


class _Counted:
    """Count a `Rollout`'s calls: rollouts spent by the base are no longer available for hints."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self.rollouts = 0

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: Purpose, greedy: bool = False
    ) -> list[Trajectory]:
        self.rollouts += len(assignments)
        return self._rollout(assignments, purpose=purpose, greedy=greedy)


# ---- the method's entry in the registry


def check(options: P2OOptions, shape: RunShape, groups: Groups = "own") -> None:
    """Refuse options under which a hard question could never count as solved."""
    judged = options.judged(shape.group_size, groups)
    if judged == 0:
        raise ValueError(
            "strategy: judged_on is 'plain', but with hinted_per_group 'all' no rollout is; expected "
            "hinted_per_group 'all_but_one' or 'half'"
        )
    if options.successes_below > judged:
        raise ValueError(
            f"strategy: successes_below is {options.successes_below}, but a question is judged by "
            f"{judged} rollouts of {shape.group_field} {shape.group_size} and would stay hard "
            f"forever; expected at most {judged}"
        )


def cost(options: P2OOptions, shape: RunShape, groups: Groups = "own") -> Cost:
    """Bound the rollouts and calls of hint evolution: a phase at each epoch's end before a step."""
    hints = options.hints
    phases = 0
    if shape.questions >= hints.hard_set_min_count and options.fixed_hints is None:
        # An epoch may be shorter than a step.
        epochs = (shape.steps - 1) * shape.questions_per_step // shape.questions
        phases = min(shape.steps - 1, epochs)
    dev = dev_count(shape.questions, hints.dev_size)  # if all are hard
    each = hints.evaluations(dev)
    # A proposal costs at least the evaluation of a minibatch.
    calls = phases * math.ceil(each / hints.minibatch) if phases else 0
    # A screen costs a rollout per hard question, and saves the phase those without a hint.
    most: dict[Purpose, int] = {
        "evolve": phases * (each + (shape.questions if options.screen else 0))
    }
    return Cost(phases, most, (Proposals(calls, hints.max_chars, hints.minibatch),))


METHOD = Method(
    options=P2OOptions,
    build=P2O,
    label="P²O",
    about="hints for hard questions, distilled into the policy",
    card=(
        f"P²O ({arxiv('2603.21877')}): hard questions rolled out under evolved hints and trained on "
        "without them, on GRPO"
    ),
    tags=("grpo", "p2o"),
    evolves=("hints",),
    needs_llm=lambda options: options.fixed_hints is None,
    check=check,
    cost=cost,
    distillation=lambda options: options.distillation,
)
