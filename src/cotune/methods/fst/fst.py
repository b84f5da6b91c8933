"""FST: Learning, Fast and Slow (arXiv 2605.12484): RL on the weights, GEPA on a set of prompts.

Every few steps a light round of GEPA on the current policy updates a small set of prompts that covers
its Pareto front over questions. In the steps between, each question's group is spread over these
prompts, with one advantage over the group, so that the gradient also compares prompts.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from cotune.errors import ConfigError
from cotune.methods.contract import MAX_CHARS, InstructionRules, check_same_initial
from cotune.methods.group_plan import (
    Target,
    check_target,
    distillation_of,
    planned,
)
from cotune.methods.instruction_evolution import (
    Candidates,
    check_budget,
    evolve_instruction,
)
from cotune.methods.last_stage import LastStage, check_last_stage, taught_groups
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.proposals import ProposalAccount, record_born
from cotune.methods.text_evolution import (
    FENCED,
    MINIBATCH,
    Judge,
    Scoring,
    Search,
    dev_count,
    least_budget,
    scores_are_lost,
    split,
    too_close_to_call,
)
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
    AnyDistillation,
    Assignment,
    Choice,
    Instruction,
    Metrics,
    Progress,
    Prompt,
    Purpose,
    Standing,
    Task,
    Trajectory,
)

_BARREN = 3  # consecutive iterations without a valid instruction that end a round


@dataclass(frozen=True, kw_only=True)
class FstOptions:
    """FST's options. `prompts` and `evolve_every` are the authors'; they call the rounds "light".

    Attributes:
        prompts: K, the most prompts in use after a round; the authors use 4 or 8.
        evolve_every: T, steps from one round to the next; the first is before step 1.
        evolve_until: no round after this step; null: rounds never end.
        budget: evaluations of a round (one is one rollout), with the prompts in use scored again.
        dev_size: training questions that prompts are scored on, the same in every round; the others
            are reflected on. Half of them if there are fewer than 1.5 times as many.
        scoring: how prompts are scored, by one rollout for each question: sampled as in training, or
            greedy. The authors' notes do not say. Greedy scoring ignores what a policy does in less than
            half of its rollouts.
        beam: parents that instructions are derived from in one iteration.
        target: the instruction that the gradient is taken on. "sampled" is the authors'; "initial"
            distils the prompts into the weights, which they leave open.
        distillation: how rollouts that are trained on another instruction are weighted, by default with
            ratio "masked_signed"; or the loss of the last stage.
        distil_steps: the run's last batches, which distil the best prompt into the weights as INSPO's do.
            No round runs in them. 0 is none.
        show_answers: whether the reflector is shown the ground truth.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["fst"] = "fst"
    prompts: int = 4
    evolve_every: int = 6
    evolve_until: int | None = None
    budget: int = 400
    dev_size: int = 40
    scoring: Scoring = "sampled"
    beam: int = 1
    target: Target = "sampled"
    distillation: AnyDistillation | None = None
    distil_steps: int = 0
    show_answers: bool = False

    def __post_init__(self) -> None:
        for name in ("prompts", "evolve_every", "dev_size", "beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.evolve_until is not None and self.evolve_until < 0:
            raise ValueError(f"evolve_until is {self.evolve_until}; expected 0 or more, or null")
        if self.distil_steps < 0:
            raise ValueError(f"distil_steps is {self.distil_steps}; expected 0 or more")
        check_target(self.target, self.distillation, self.distil_steps)

    def least_budget(self, dev: int) -> int:
        """Return the fewest evaluations with which a round can propose anything, on `dev` questions."""
        return (self.prompts - 1) * dev + least_budget(dev)

    def is_due(self, step: int) -> bool:
        """Return whether a round runs before a step."""
        ended = self.evolve_until is not None and step > self.evolve_until
        return (step - 1) % self.evolve_every == 0 and not ended


def covering_prompts(scores: Sequence[Sequence[float]], count: int) -> list[int]:
    """Return at most `count` prompts that cover the Pareto front over questions, by index.

    Greedy: each step takes the prompt that most raises the sum over questions of the best score. The
    first is the one with the highest mean; ties go to the earliest. It ends when no prompt adds anything.

    Args:
        scores: prompts × questions.

    >>> covering_prompts([[0.5, 0.5, 0.5], [1, 0, 0], [0, 0, 0.4]], 3)
    [0, 1]
    """
    chosen: list[int] = []
    best = [-math.inf] * len(scores[0])

    def covered(prompt: int) -> float:
        return sum(max(new, old) for new, old in zip(scores[prompt], best, strict=True))

    while len(chosen) < count:
        first = max(range(len(scores)), key=lambda prompt: (covered(prompt), -prompt))
        if chosen and covered(first) <= sum(best):
            break
        chosen.append(first)
        best = [max(new, old) for new, old in zip(scores[first], best, strict=True)]
    return chosen


class Fst(LastStage):
    """Run FST around an engine's policy update.

    The authors' notes leave some points open. We assume that the first round runs before the first step.
    A round scores the prompts in use again, under the current policy, and evolves from the best of them;
    the others stay candidates for the cover. Every round uses the same dev questions, which no
    reflection shows, so no prompt is scored on a question that its author saw. The best prompt is the
    one with the highest mean in the last round.
    """

    def __init__(self, options: FstOptions, context: Context) -> None:
        distillation = distillation_of(options.distillation, options.target)
        super().__init__(options.distil_steps, distillation)
        self.options, self.seed = options, context.seed
        self._rules = InstructionRules.of(context)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; FST expects 2 or more, to score and "
                "reflect on"
            )
        dev = dev_count(len(context.tasks), options.dev_size)
        if options.budget < (least := options.least_budget(dev)):
            raise ConfigError(
                f"strategy.budget is {options.budget}; expected at least {least}, to score "
                f"{options.prompts} prompts and a new one on {dev} questions; raise it, or lower "
                "strategy.dev_size"
            )
        self._dev, self._train = split(context.tasks, options.dev_size, f"fst/{self.seed}")
        self._description = context.description
        self._lineage = [Instruction("i0", context.instruction)]
        self._prompts = ["i0"]  # in use, the best first
        self._means: dict[str, float] = {}  # last mean dev score by id
        self._rows: dict[str, tuple[float, ...]] = {}  # dev scores of the prompts in use
        self._rounds = 0
        self._observed: Counter[str] = Counter()  # training rollouts by id
        self._steps: Counter[str] = Counter()  # steps with such rollouts by id
        self._account = ProposalAccount("instruction", FENCED, needed=True)
        self._evolved_before = 0  # the step before which evolution was last considered
        self._batch = 0  # rollouts of the last batch

    @property
    def checks_uplift(self) -> bool:
        return _checks_uplift(self.options)

    # ---- fast weights

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the round that is due before a step; a second call at the same step does nothing.

        Raises:
            EvolutionError: see `ProposalAccount.end_phase`.
        """
        step, options = progress.step, self.options
        if step <= self._evolved_before:
            return {}
        if not self._evolved_before:
            record_born(self._lineage[0], record)
        self._evolved_before = step
        if self._distils(progress, self._batch):
            self._notice_if_idle(progress, self._batch, self._used()[0], record)
            return {}
        if not options.is_due(step):
            return {}
        left = progress.rollouts_left
        rest = None if left is None else left - self._batch * (1 + options.distil_steps)
        if rest is not None and options.budget > rest:
            record(
                "notice",
                text=f"a round of {options.budget} evaluations is more than the {max(0, rest)} that "
                "rollout_budget leaves for one: no prompts are evolved",
            )
            return {}
        before_stage = progress.total_steps - options.distil_steps
        later = any(map(options.is_due, range(step + 1, before_stage + 1)))
        return self._round(step, rollout, llm, record, last=not later and not self._rounds)

    def _round(
        self, step: int, rollout: Rollout, llm: LLM, record: Recorder, last: bool
    ) -> Metrics:
        """Score the prompts in use, evolve from the best, and keep those that cover the front."""
        options, used = self.options, self._used()
        judge = Judge(Prompt, rollout, record, scoring=options.scoring)
        scored = judge.evaluate([(one.text, self._dev) for one in used])
        before = Candidates(tuple(used), tuple(tuple(t.reward for t in row) for row in scored))
        seed = used[before.best]
        known = {seed.text: {t.task.id: t for t in scored[before.best]}}
        found = evolve_instruction(
            self._dev,
            self._train,
            judge=Judge(Prompt, rollout, record, known, options.scoring),
            llm=llm,
            rules=self._rules,
            search=Search(
                seed=seed.text,
                budget=options.budget - judge.evaluations,
                beam=options.beam,
                barren=_BARREN,
            ),
            show_answers=options.show_answers,
            seed_key=f"fst/{self.seed}/{step}",
            step=step,
            record=record,
            account=self._account,
            known=self._lineage,
            description=self._description,
            last=last,
        )
        self._rounds += 1
        new = found.instructions[1:]  # the first is the seed
        self._lineage += new
        pool, rows = [*used, *new], [*before.scores, *found.scores[1:]]
        every = Candidates(tuple(pool), tuple(rows))
        means = {one.id: every.mean(i) for i, one in enumerate(pool)}
        spent, lost = judge.evaluations + found.evaluations, judge.lost + found.lost
        if scores_are_lost(lost, spent, record, "the prompts in use stay"):
            cause = "its scores were lost"
            self._means = means | self._means
            self._rows = {one.id: self._rows.get(one.id, rows[i]) for i, one in enumerate(used)}
        else:
            cause = "not in the cover"
            self._means |= means
            cover = covering_prompts(rows, options.prompts)
            self._rows = {pool[i].id: rows[i] for i in sorted(cover, key=every.ranked.index)}
        self._prompts = list(self._rows)
        for one in pool:
            if one.id not in self._rows:
                count, weight = self._observed[one.id], self._means[one.id]
                record(
                    "instruction_pruned",
                    id=one.id, weight=weight, observed_rollouts=count, cause=cause,
                )  # fmt: skip
        front = [max(column) for column in zip(*self._rows.values(), strict=True)]
        return {
            "fst/evaluations": float(spent),
            "fst/accepted": float(len(new)),
            "fst/prompts": float(len(self._prompts)),
            "fst/best_dev_score": self._means[self._prompts[0]],
            "fst/covered_dev_score": sum(front) / len(front),
        }

    def _used(self) -> list[Instruction]:
        by_id = {one.id: one for one in self._lineage}
        return [by_id[identity] for identity in self._prompts]

    # ---- slow weights

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Spread each question's group over the prompts, in an order drawn for the group."""
        used, initial = self._used(), self._lineage[0]
        self._distilling = self._distils(progress, len(tasks) * group_size)
        if self._distilling:
            return taught_groups(tasks, group_size, initial, used[0])
        trained = initial if self.options.target == "initial" else None
        assignments: list[Assignment] = []
        for group, task in enumerate(tasks):
            # The first prompts of the order get the rollouts that cannot be shared evenly.
            order = random.Random(f"fst/{self.seed}/assign/{progress.step}/{group}")
            drawn = order.sample(used, min(len(used), group_size))
            assignments += planned(task, group, group_size, "population", drawn, initial, trained)
        return assignments

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Count rollouts by prompt and record the "population" event; rewards change no prompt."""
        self._batch, self._settled = len(trajectories), None
        seen = Counter(t.assignment.instruction_id for t in trajectories)
        self._observed += seen
        self._steps.update(seen.keys())
        groups = Counter(
            identity
            for identity, _ in {
                (t.assignment.instruction_id, t.assignment.group) for t in trajectories
            }
        )
        record(
            "population",
            members=[
                {
                    "id": identity,
                    "weight": self._means.get(identity),
                    "probability": 1 / len(self._prompts),
                    "observed": self._means.get(identity),
                    "observed_rollouts": self._observed[identity],
                    "assigned_groups": groups[identity],
                }
                for identity in self._prompts
            ],
        )
        return {}

    # ---- the best prompt, and saved state

    def choice(self) -> Choice:
        """Return the prompt with the highest mean in the last round; the initial one before any."""
        first, *others = sorted(self._used(), key=lambda one: one.id != self._settled)
        if first.id not in self._rows:
            return Choice(first, 0.0, 0, 0, None, False)
        row = self._rows[first.id]
        rivals = tuple(one for one in others if too_close_to_call(row, self._rows[one.id]))
        second = others[0] if others else None
        weight, rollouts = self._means[first.id], self._observed[first.id]
        return Choice(
            first, weight, self._steps[first.id], rollouts, second, second in rivals, rivals
        )

    def standings(self) -> list[Standing]:
        """Return all instructions, oldest first, weighted by their last mean dev score."""
        share = 1 / len(self._prompts)
        return [
            Standing(
                one,
                alive=one.id in self._prompts,
                weight=self._means.get(one.id),
                probability=share if one.id in self._prompts else None,
                observed_rollouts=self._observed[one.id],
            )
            for one in self._lineage
        ]

    def state_dict(self) -> State:
        return {
            "lineage": [asdict(instruction) for instruction in self._lineage],
            "prompts": list(self._prompts),
            "means": dict(self._means),
            "rows": {identity: list(row) for identity, row in self._rows.items()},
            "rounds": self._rounds,
            "observed": dict(self._observed),
            "steps": dict(self._steps),
            "health": self._account.state_dict(),
            "evolved_before": self._evolved_before,
            "batch": self._batch,
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state is from a run with a different initial instruction."""
        lineage = [Instruction(**fields) for fields in state["lineage"]]
        check_same_initial(lineage[0].text, self._lineage[0].text)
        self._lineage, self._prompts = lineage, list(state["prompts"])
        self._means = dict(state["means"])
        self._rows = {identity: tuple(row) for identity, row in state["rows"].items()}
        self._rounds, self._observed = int(state["rounds"]), Counter(state["observed"])
        self._steps = Counter(state["steps"])
        self._account.load_state_dict(state["health"])
        self._evolved_before, self._batch = int(state["evolved_before"]), int(state["batch"])


# ---- the method's entry in the registry


def _checks_uplift(options: FstOptions) -> bool:
    return options.target == "initial" or options.distil_steps > 0


def _check(options: FstOptions, shape: RunShape) -> None:
    check_last_stage(options.distil_steps, shape)
    check_budget(options.budget, shape, batches=1 + options.distil_steps)


def _cost(options: FstOptions, shape: RunShape) -> Cost:
    rounds = sum(map(options.is_due, range(1, shape.steps + 1)))
    calls = rounds * math.ceil(options.budget / MINIBATCH)
    shown = Proposals(calls, MAX_CHARS, MINIBATCH)
    evolve: dict[Purpose, int] = {"evolve": rounds * options.budget}
    return Cost(rounds, evolve, (shown,), 1 + _checks_uplift(options), options.prompts - 1)


METHOD = Method(
    options=FstOptions,
    build=Fst,
    label="FST",
    about="a set of prompts and policy together, by GEPA and CISPO",
    card=(
        f"FST ({arxiv('2605.12484')}): groups spread over prompts that GEPA evolves on the current "
        "policy, on GRPO's advantages with CISPO's loss"
    ),
    tags=("grpo", "fst"),
    evolves=("instruction",),
    loss="cispo",
    check=_check,
    cost=_cost,
    distillation=lambda options: distillation_of(options.distillation, options.target),
)
