"""FST and GEPA: prompts that GEPA evolves, with and beside RL on the weights.

FST (Learning, Fast and Slow, arXiv 2605.12484): every few steps a light round of GEPA on the current policy
updates a small set of prompts that covers its Pareto front over questions. In the steps between, each question's
group is spread over these prompts, with one advantage over the group, so that the gradient also compares prompts.

GEPA (arXiv 2507.19457) is FST with one prompt and one round, before any training: the prompt-only baseline.
"""

import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any, Literal

from cotune.errors import ConfigError
from cotune.methods.contract import TextRules
from cotune.methods.last_stage import EvolvedInstructions, TrainedPromptOptions, check_last_stage
from cotune.methods.method import (
    Context,
    Cost,
    Evolution,
    Method,
    RunShape,
    check_least,
    too_close_to_call,
)
from cotune.methods.proposals import (
    ProposalAccount,
    record_born,
    record_gone,
    record_rejected,
    surroundings,
)
from cotune.methods.text_evolution import (
    MINIBATCH,
    DevScores,
    GepaSearchOptions,
    Record,
    Scoring,
    SearchPlan,
    TextSearch,
    gepa_prompt,
    greedy_cover,
    least_budget,
    mean_scores,
    ranked,
    read_fenced,
    split,
)
from cotune.protocols import Recorder, State
from cotune.types import Choice, Instruction, Metrics, Progress, Prompt, Purpose, Trajectory

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # within a phase


@dataclass(frozen=True, kw_only=True)
class FstOptions(TrainedPromptOptions, GepaSearchOptions):
    """FST's options. `prompts` and `evolve_every` are the authors'; they call the rounds "light".

    Attributes:
        prompts: K, the most prompts in use after a round; the authors use 4 or 8.
        evolve_every: T, steps from one round to the next; the first is before step 1.
        budget: evaluations of a round (one is one rollout), with the prompts in use scored again.
        target: the instruction that the gradient is taken on. "sampled" is the authors'; "initial"
            distils the prompts into the weights, which they leave open.
    """

    kind: Literal["fst"] = "fst"
    prompts: int = 4
    evolve_every: int = 6
    budget: int = 400
    dev_size: int = 40
    scoring: Scoring = "sampled"

    def __post_init__(self) -> None:
        TrainedPromptOptions.__post_init__(self)
        GepaSearchOptions.__post_init__(self)
        check_least(self, 1, "prompts", "evolve_every")

    def is_due(self, step: int) -> bool:
        """Return whether a round runs before a step."""
        return (step - 1) % self.evolve_every == 0


class Fst(EvolvedInstructions):
    """Run FST around an engine's policy update: rounds for the fast weights, batches for the slow ones.

    What the authors' notes leave open is ours: the first round runs before the first step; all rounds score on
    the same dev questions, which no reflection shows, sampled as in training; and the best prompt is the one with
    the highest mean in the last round.
    """

    name = "fst"
    barren = 3  # consecutive iterations without a valid instruction that end a round

    def __init__(self, options: FstOptions, context: Context) -> None:
        super().__init__(options, context, "population")
        self.options = options
        self._rules = TextRules.of_instructions(context)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; {self.name.upper()} expects 2 or more, to "
                "score and reflect on"
            )
        self._key = f"{self.name}/{self.seed}"
        self._dev, self._train = split(context.tasks, options.dev_size, self._key)
        dev = len(self._dev)
        least = (options.prompts - 1) * dev + least_budget(dev)
        if options.budget < least:
            raise ConfigError(
                f"strategy.budget is {options.budget}; expected at least {least}, to score {options.prompts} "
                f"prompts and a new one on {dev} questions; raise it, or lower strategy.dev_size"
            )
        self._description = context.description
        self._account = ProposalAccount("instruction", read_fenced, needed=True)
        self._rows: DevScores = {}  # of the prompts in use, the best first; none before a round
        self._rounds = 0
        self._observed: Counter[str] = Counter()  # training rollouts by id
        self._steps: Counter[str] = Counter()  # steps with such rollouts by id

    @property
    def _prompts(self) -> list[str]:
        """Return the ids of the prompts in use, the best first."""
        return list(self._rows) or ["i0"]

    def _prompts_in_use(self) -> list[Instruction]:
        """Return the prompts in use, the best first."""
        by_id = {instruction.id: instruction for instruction in self._lineage}
        return [by_id[identity] for identity in self._prompts]

    def _rank_prompts(self) -> list[Instruction]:
        """Return the prompts in use, the best first; after `settle`, the one named there."""
        return sorted(self._prompts_in_use(), key=lambda prompt: prompt.id != self._settled)

    # ---- fast weights

    def _evolve(self, evolution: Evolution) -> Metrics:
        """Run the round that is due before a step."""
        progress = evolution.progress
        step = progress.step
        options = self.options
        if not options.is_due(step):
            return {}
        spendable = self._spendable(progress)
        if spendable is not None and options.budget > spendable:
            evolution.record(
                "notice",
                text=f"a round of {options.budget} evaluations is more than the {max(0, spendable)} that "
                "rollout_budget leaves for one: no prompts are evolved",
            )
            return {}
        before_stage = progress.total_steps - options.distil_steps
        later = any(map(options.is_due, range(step + 1, before_stage + 1)))
        return self._round(evolution, last=not later and not self._rounds)

    def _round(self, evolution: Evolution, last: bool) -> Metrics:
        options = self.options
        used = self._prompts_in_use()
        born = len(self._lineage)
        plan = SearchPlan(
            options=options,
            dev=self._dev,
            train=self._train,
            budget=options.budget,
            barren=self.barren,
            key=self._search_key(evolution.progress.step),
        )
        search = InstructionSearch(
            self._lineage, self._description, plan, evolution, self._account, self._rules
        )
        # 1. Score the prompts in use again, under the current policy. A single one is scored by the search.
        again = search.score([prompt.text for prompt in used] if options.prompts > 1 else [])
        # 2. GEPA evolves from the best of them; the others stay candidates for the cover.
        seed = max(used, key=lambda prompt: fmean(again.get(prompt.text, (0.0,))))
        by_text = again | (evolved := search.run(seed, last))
        self._rounds += 1
        self._lineage = search.instructions
        scores = {prompt.id: by_text[prompt.text] for prompt in (*used, *self._lineage[born:])}
        # 3. The prompts in use are those that cover the Pareto front of all.
        ids = [*scores]
        # The first has the highest mean; ties go to the earliest.
        cover = greedy_cover([*scores.values()], -math.inf)[: options.prompts]
        in_use = {ids[i] for i in cover}
        self._rows = {
            identity: scores[identity] for identity in ranked(scores) if identity in in_use
        }
        self._report_round(scores, evolution.record)
        front = [max(column) for column in zip(*self._rows.values(), strict=True)]
        metrics = {
            "evaluations": search.evaluations,
            "accepted": len(evolved) - 1,
            "prompts": len(self._rows),
            "best_dev_score": fmean(self._rows[self._prompts[0]]),
            "covered_dev_score": fmean(front),
        }
        return {f"{self.name}/{name}": float(value) for name, value in metrics.items()}

    def _search_key(self, step: int) -> str:
        return f"{self._key}/{step}"

    def _report_round(self, scores: DevScores, record: Recorder) -> None:
        """Record the instructions of a round that are not in use after it."""
        for identity, weight in mean_scores(scores).items():
            if identity not in self._rows:
                record_gone(identity, weight, self._observed[identity], "not in the cover", record)

    # ---- slow weights

    def _draw(self, key: str, group_size: int) -> list[Instruction]:
        """Return the prompts in use, in an order drawn for the group.

        The first ones get the rollouts that cannot be shared evenly.
        """
        used = self._prompts_in_use()
        return random.Random(key).sample(used, min(len(used), group_size))

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Count rollouts by prompt; rewards change no prompt."""
        super().observe(trajectories, progress, record)
        rollouts = Counter(t.assignment.instruction_id for t in trajectories)
        self._observed += rollouts
        self._steps.update(rollouts.keys())
        means = mean_scores(self._rows)
        members = [
            {
                "id": identity,
                "weight": means.get(identity),
                "probability": 1 / len(self._prompts),
                "observed": means.get(identity),
                "observed_rollouts": self._observed[identity],
            }
            for identity in self._prompts
        ]
        self._record_population(members, trajectories, record)
        return {}

    # ---- the best prompt, and saved state

    def best(self) -> Instruction:
        """Return the prompt with the highest mean in the last round; the initial one before any."""
        return self._rank_prompts()[0]

    def choice(self) -> Choice | None:
        first, *others = self._rank_prompts()
        if first.id not in self._rows:
            return Choice(first, 0.0, 0, 0, None, False)
        row = self._rows[first.id]
        rivals = tuple(prompt for prompt in others if too_close_to_call(row, self._rows[prompt.id]))
        second = others[0] if others else None
        weight = fmean(row)
        rollouts = self._observed[first.id]
        return Choice(
            first, weight, self._steps[first.id], rollouts, second, second in rivals, rivals
        )

    def state_dict(self) -> State:
        return super().state_dict() | {
            # A list: JSON may be saved with sorted keys.
            "rows": [[identity, list(row)] for identity, row in self._rows.items()],
            "rounds": self._rounds,
            "observed": dict(self._observed),
            "steps": dict(self._steps),
            "health": self._account.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._rows = {identity: tuple(row) for identity, row in state["rows"]}
        self._rounds = int(state["rounds"])
        self._observed = Counter(state["observed"])
        self._steps = Counter(state["steps"])
        self._account.load_state_dict(state["health"])


# ---- a search for instructions


class InstructionSearch(TextSearch):
    """Evolve instructions by GEPA from one of `instructions`, and record the events.

    Attributes:
        instructions: all instructions in order of birth, the new ones last.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        description: str,
        plan: SearchPlan,
        evolution: Evolution,
        account: ProposalAccount,
        rules: TextRules,
    ) -> None:
        self.instructions = list(instructions)
        self._about = surroundings(description)
        self._rules = rules
        self._born = evolution.progress.step
        self._ids = {instruction.text: instruction.id for instruction in instructions}
        self._origin = getattr(evolution.llm, "origin", "") or _ORIGIN
        self._before = 0  # rollouts before the search itself
        self._part = -1  # of the budget, when progress was last recorded
        lineage = {instruction.text: instruction.shown for instruction in instructions}
        super().__init__(plan, evolution, account, rules, lineage)

    def run(self, seed: Instruction, last: bool) -> DevScores:
        """Return all texts with their scores, the seed first; the accepted ones join the instructions.

        Raises:
            EngineError, EvolutionError: see `end_phase`, which takes `last`.
        """
        self._before = self.evaluations
        budget = self.left
        self.record("gepa_phase", dev=len(self.plan.dev), train=len(self.plan.train), budget=budget)
        scores = self.evolve(seed.text)
        self.end_phase(last)
        means = [*mean_scores(scores).values()]
        self.record(
            "gepa_phase_ended",
            evaluations=self.evaluations - self._before,
            budget=budget,
            asked=self.account.asked,
            proposed=self.account.answered,
            valid=self.account.valid,
            accepted=len(scores) - 1,
            initial_dev_score=means[0],
            best_dev_score=max(means),
        )
        return scores

    def prompt(self, text: str) -> Prompt:
        return Prompt(text)

    def reflection_prompt(self, parent: str, examples: Sequence[Record]) -> str:
        return self._about + instruction_prompt(parent, examples, self._rules.kept_texts)

    def record_accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        draft = self.drafts[text]
        instruction = Instruction(
            id=f"i{len(self.instructions)}",
            text=text,
            parent=self._ids[parent],
            origin=self._origin,
            born=self._born,
            critique=draft.critique,
            shown=tuple(sorted(draft.shown)),
        )
        self.instructions.append(instruction)
        self._ids[text] = instruction.id
        record_born(instruction, self.record, score, parent_score)

    def record_rejected(self, text: str, parent: str, reason: str, **scores: float) -> None:
        record_rejected(text, self._ids[parent], self._origin, reason, self.record, **scores)

    def record_progress(self, texts: int, best: float) -> None:
        """Record progress twenty times a round at most: an iteration may be only six rollouts."""
        evaluations = self.evaluations - self._before
        budget = self.plan.budget - self._before
        part = evaluations * _PROGRESS_EVENTS // budget
        if part == self._part:
            return
        self._part = part
        self.record(
            "gepa_progress",
            evaluations=evaluations,
            budget=budget,
            instructions=texts,
            best_dev_score=best,
        )


# ---- the prompt

ABOUT_AN_AGENT = "The assistant is an agent: it may act in several turns"
"""Present in every prompt of this module and in none of gepa's own."""

# gepa's own text, except for the agent and for its advice to put facts of the examples into the
# instruction, which the contract forbids.
_TEMPLATE = f"""I provided an assistant with the following instructions to perform a task for me:
```
<curr_param>
```

{ABOUT_AN_AGENT}, and what its tools returned stands in its responses where it saw it. The following are examples of different task inputs provided to the assistant along with the assistant's response for each of them, and some feedback on how the assistant's response could be better:
```
<side_info>
```

Your task is to write a new instruction for the assistant.

Read the inputs carefully and identify the input format and infer detailed task description about the task I wish to solve with the assistant.

Read all the assistant responses turn by turn with the corresponding feedback: how it planned, what it asked its tools for, what it made of their results, how it gave its answer. First say in a few sentences what went wrong, and what in the instructions allowed it. The assistant may have utilized a generalizable strategy to solve the task, if so, include that in the instruction as well. Write general strategies, never the answers to these examples.
"""


def instruction_prompt(parent: str, examples: Sequence[Record], required: Iterable[str]) -> str:
    """Build the prompt: parent and examples in, critique and one new instruction with the required texts out."""
    prompt = gepa_prompt(parent, examples, prompt_template=_TEMPLATE)
    texts = ", ".join(required)
    keep = (
        f"Keep these texts in the new instruction, letter by letter: {texts}\n\n" if texts else ""
    )
    return f"{prompt}\n{keep}Provide the new instructions within ``` blocks."


# ---- the method's entry in the registry


def check(options: FstOptions, shape: RunShape) -> None:
    """Raise ValueError if the first round and the batches that must follow it cost too much."""
    check_last_stage(options.distil_steps, shape)
    batch = 0 if shape.frozen else shape.questions_per_step * shape.group_size
    following = (1 + options.distil_steps) * batch
    if shape.rollout_budget is not None and options.budget + following > shape.rollout_budget:
        raise ValueError(
            f"strategy.budget is {options.budget}, and {following} rollouts must follow, more than "
            f"training.rollout_budget, {shape.rollout_budget}; lower strategy.budget, or raise it"
        )


def cost(options: FstOptions, shape: RunShape) -> Cost:
    rounds = sum(map(options.is_due, range(1, shape.steps - options.distil_steps + 1)))
    calls = rounds * math.ceil(options.budget / MINIBATCH)
    evolve: dict[Purpose, int] = {"evolve": rounds * options.budget}
    validations = 1 + options.checks_uplift
    return Cost(rounds, evolve, calls, MINIBATCH, validations, options.prompts - 1)


METHOD = Method(
    options=FstOptions,
    build=Fst,
    label="FST",
    about="a set of prompts and policy together, by GEPA and CISPO",
    evolves="instruction",
    loss="cispo",
    check=check,
    cost=cost,
    distillation=lambda options: options.weighting,
)


# ---- GEPA


@dataclass(frozen=True, kw_only=True)
class GepaOptions(GepaSearchOptions):
    """GEPA's options. The paper spends about 2,000 to 7,000 rollouts on a task.

    Attributes:
        budget: evaluations (one is one rollout), all before the first training batch.
    """

    kind: Literal["gepa"] = "gepa"
    budget: int = 6000

    @property
    def once(self) -> FstOptions:
        """Return FST's options for one prompt and one round, before the first step."""
        shared = {field.name: getattr(self, field.name) for field in fields(GepaSearchOptions)}
        return FstOptions(prompts=1, evolve_every=sys.maxsize, budget=self.budget, **shared)


class Gepa(Fst):
    """Evolve the instruction once, at the first step; every rollout then uses the best one.

    With `training.frozen` nothing else happens: "prompt only". Otherwise the policy is then trained as in GRPO
    with a static instruction: "prompt before RL".
    """

    name = "gepa"
    barren = 20

    def __init__(self, options: GepaOptions, context: Context) -> None:
        super().__init__(options.once, context)

    def _search_key(self, step: int) -> str:
        return self._key

    def _report_round(self, scores: DevScores, record: Recorder) -> None:
        """Record the best instruction, which the run keeps."""
        first = self._prompts[0]
        others = [identity for identity in ranked(scores) if identity != first]
        record(
            "best_instruction",
            id=first,
            weight=fmean(scores[first]),
            observed_steps=0,
            observed_rollouts=len(scores[first]),
            runner_up=others[0] if others else None,
            too_close_to_call=bool(others) and too_close_to_call(scores[first], scores[others[0]]),
        )

    def _record_population(
        self,
        members: Sequence[dict[str, Any]],
        trajectories: Sequence[Trajectory],
        record: Recorder,
    ) -> None:
        """Record nothing: one instruction is no population."""

    def choice(self) -> None:
        """Return None: the best instruction was recorded with the search."""


GEPA = Method(
    options=GepaOptions,
    build=Gepa,
    label="GEPA",
    about="the instruction evolved before the first step",
    evolves="instruction",
    uses_batches=False,
    check=lambda options, shape: check(options.once, shape),
    cost=lambda options, shape: cost(options.once, shape),
)
