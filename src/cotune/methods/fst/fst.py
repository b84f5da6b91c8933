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
from statistics import fmean
from typing import ClassVar, Literal

from cotune.errors import ConfigError
from cotune.methods.contract import MAX_CHARS, InstructionRules, check_same_initial
from cotune.methods.group_plan import planned
from cotune.methods.instruction_evolution import (
    Births,
    Candidates,
    check_budget,
    instruction_prompter,
)
from cotune.methods.last_stage import (
    LastStage,
    TrainedPromptOptions,
    check_last_stage,
    taught_groups,
)
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.proposals import ProposalAccount, record_born
from cotune.methods.text_evolution import (
    FENCED,
    MINIBATCH,
    Evolved,
    GepaSearchOptions,
    Judge,
    Reflector,
    Report,
    Scoring,
    Search,
    dev_count,
    evolve_by_gepa,
    least_budget,
    scores_are_lost,
    split,
    too_close_to_call,
)
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
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


@dataclass(frozen=True, kw_only=True)
class FstOptions(TrainedPromptOptions, GepaSearchOptions):
    """FST's options. `prompts` and `evolve_every` are the authors'; they call the rounds "light".

    Attributes:
        prompts: K, the most prompts in use after a round; the authors use 4 or 8.
        evolve_every: T, steps from one round to the next; the first is before step 1.
        evolve_until: no round after this step; null: rounds never end.
        budget: evaluations of a round (one is one rollout), with the prompts in use scored again.
        target: the instruction that the gradient is taken on. "sampled" is the authors'; "initial"
            distils the prompts into the weights, which they leave open.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["fst"] = "fst"
    prompts: int = 4
    evolve_every: int = 6
    evolve_until: int | None = None
    budget: int = 400
    dev_size: int = 40
    scoring: Scoring = "sampled"

    def __post_init__(self) -> None:
        TrainedPromptOptions.__post_init__(self)
        GepaSearchOptions.__post_init__(self)
        for name in ("prompts", "evolve_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.evolve_until is not None and self.evolve_until < 0:
            raise ValueError(f"evolve_until is {self.evolve_until}; expected 0 or more, or null")

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
    reflection shows, so no prompt is scored on a question that its author saw. Their notes do not say
    how prompts are scored; we sample as in training. The best prompt is the
    one with the highest mean in the last round.
    """

    name = "fst"  # in the keys of draws and the names of metrics
    barren = 3  # consecutive iterations without a valid instruction that end a round

    def __init__(self, options: FstOptions, context: Context) -> None:
        super().__init__(options)
        self.options, self.seed = options, context.seed
        self._rules = InstructionRules.of(context)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; {self.name.upper()} expects 2 or more, to "
                "score and reflect on"
            )
        dev = dev_count(len(context.tasks), options.dev_size)
        if options.budget < (least := options.least_budget(dev)):
            some = (
                f"{options.prompts} prompts" if options.prompts > 1 else "the initial instruction"
            )
            raise ConfigError(
                f"strategy.budget is {options.budget}; expected at least {least}, to score {some} and a "
                f"new one on {dev} questions; raise it, or lower strategy.dev_size"
            )
        self._key = f"{self.name}/{self.seed}"
        self._dev, self._train = split(context.tasks, options.dev_size, self._key)
        self._prompter = instruction_prompter(self._rules, context.description)
        self._account = ProposalAccount("instruction", FENCED, needed=True)
        self._lineage = [Instruction("i0", context.instruction)]
        self._prompts = ["i0"]  # in use, the best first
        self._means: dict[str, float] = {}  # last mean dev score by id
        self._rows: dict[str, tuple[float, ...]] = {}  # dev scores of the prompts in use
        self._rounds = 0
        self._observed: Counter[str] = Counter()  # training rollouts by id
        self._steps: Counter[str] = Counter()  # steps with such rollouts by id
        self._evolved_before = 0  # the step before which evolution was last considered
        self._batch = 0  # rollouts of the last batch

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
        # A single prompt is scored by the search.
        again = used if options.prompts > 1 else []
        scored = judge.evaluate([(prompt.text, self._dev) for prompt in again])
        means = [fmean(t.reward for t in row) for row in scored]
        best = max(range(len(again)), key=means.__getitem__, default=0)
        rollouts = {again[best].text: {t.task.id: t for t in scored[best]}} if again else {}
        searching = Judge(Prompt, rollout, record, rollouts, options.scoring)
        budget = options.budget - judge.evaluations
        new, evolved = self._search(used[best], budget, searching, step, llm, record, last)
        self._rounds += 1
        rows = [tuple(t.reward for t in row) for row in scored] or [evolved.scores[0]]
        pool = Candidates((*used, *new), (*rows, *evolved.scores[1:]))
        spent = judge.evaluations + searching.evaluations
        lost = judge.lost + searching.lost
        if scores_are_lost(lost, spent, record, "the prompts in use stay"):
            cause = "its scores were lost"
            self._means = pool.means | self._means
            self._rows = {
                prompt.id: self._rows.get(prompt.id, rows[i]) for i, prompt in enumerate(used)
            }
        else:
            cause = "not in the cover"
            self._means |= pool.means
            cover = covering_prompts(pool.scores, options.prompts)
            ids = [prompt.id for prompt in pool.instructions]
            self._rows = {ids[i]: pool.scores[i] for i in sorted(cover, key=pool.ranked.index)}
        self._prompts = list(self._rows)
        self._report_round(pool, cause, record)
        front = [max(column) for column in zip(*self._rows.values(), strict=True)]
        metrics = {
            "evaluations": spent,
            "accepted": len(new),
            "prompts": len(self._prompts),
            "best_dev_score": self._means[self._prompts[0]],
            "covered_dev_score": fmean(front),
        }
        return {f"{self.name}/{name}": float(value) for name, value in metrics.items()}

    def _search(
        self,
        seed: Instruction,
        budget: int,
        judge: Judge,
        step: int,
        llm: LLM,
        record: Recorder,
        last: bool,
    ) -> tuple[list[Instruction], Evolved]:
        """Evolve instructions from one by GEPA; return the accepted ones, and all texts with their scores.

        Records "gepa_phase", "gepa_progress" and "gepa_phase_ended"; accepted instructions as
        "instruction_born" with critique and mean dev score, the others as "instruction_rejected".
        """
        options, account, earlier = self.options, self._account, self._lineage
        record("gepa_phase", dev=len(self._dev), train=len(self._train), budget=budget)
        shown = {instruction.text: instruction.shown for instruction in earlier}
        reflector = Reflector(account, self._prompter, options.show_answers, shown)
        born = Births(earlier, reflector.drafts, step, record, llm, budget)
        account.begin(llm, record, self._rules.check, born.reject, tried=shown)
        evolved = evolve_by_gepa(
            self._dev,
            self._train,
            judge,
            reflector,
            Search(seed=seed.text, budget=budget, beam=options.beam, barren=self.barren),
            self._search_key(step),
            Report(born.accepted, born.rejected, born.progress),
        )
        reflector.end_phase(last)
        means = [fmean(row) for row in evolved.scores]
        record(
            "gepa_phase_ended",
            evaluations=judge.evaluations,
            budget=budget,
            asked=account.asked,
            proposed=account.answered,
            valid=account.valid,
            accepted=len(evolved.texts) - 1,
            initial_dev_score=means[0],
            best_dev_score=max(means),
        )
        new = born.instructions[len(earlier) :]
        self._lineage = born.instructions
        return new, evolved

    def _search_key(self, step: int) -> str:
        return f"{self._key}/{step}"

    def _report_round(self, pool: Candidates, cause: str, record: Recorder) -> None:
        """Record the instructions of a round that are not in use after it."""
        for prompt in pool.instructions:
            if prompt.id not in self._rows:
                count, weight = self._observed[prompt.id], self._means[prompt.id]
                record(
                    "instruction_pruned",
                    id=prompt.id, weight=weight, observed_rollouts=count, cause=cause,
                )  # fmt: skip

    def _used(self) -> list[Instruction]:
        by_id = {instruction.id: instruction for instruction in self._lineage}
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

    def best(self) -> Instruction:
        """Return the prompt with the highest mean in the last round; the initial one before any."""
        return self._ranked()[0]

    def _ranked(self) -> list[Instruction]:
        """Return the prompts in use, the best first."""
        return sorted(self._used(), key=lambda prompt: prompt.id != self._settled)

    def choice(self) -> Choice | None:
        first, *others = self._ranked()
        if first.id not in self._rows:
            return Choice(first, 0.0, 0, 0, None, False)
        row = self._rows[first.id]
        rivals = tuple(prompt for prompt in others if too_close_to_call(row, self._rows[prompt.id]))
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
                instruction,
                alive=instruction.id in self._prompts,
                weight=self._means.get(instruction.id),
                probability=share if instruction.id in self._prompts else None,
                observed_rollouts=self._observed[instruction.id],
            )
            for instruction in self._lineage
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


def check(options: FstOptions, shape: RunShape) -> None:
    check_last_stage(options.distil_steps, shape)
    check_budget(options.budget, shape, batches=1 + options.distil_steps)


def cost(options: FstOptions, shape: RunShape) -> Cost:
    rounds = sum(map(options.is_due, range(1, shape.steps + 1)))
    calls = rounds * math.ceil(options.budget / MINIBATCH)
    shown = Proposals(calls, MAX_CHARS, MINIBATCH)
    evolve: dict[Purpose, int] = {"evolve": rounds * options.budget}
    return Cost(rounds, evolve, (shown,), 1 + options.checks_uplift, options.prompts - 1)


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
    check=check,
    cost=cost,
    distillation=lambda options: options.weighting,
)
