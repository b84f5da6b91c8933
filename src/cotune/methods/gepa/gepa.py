"""GEPA on the instruction, before any training: the prompt-only baseline (arXiv 2507.19457)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import ClassVar, Literal

from cotune.errors import ConfigError
from cotune.methods.instruction_rules import (
    InstructionRules,
    protocol_tags,
    surroundings,
    without_reasoning,
)
from cotune.methods.llm_health import LLMHealth
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.static import StaticStrategy
from cotune.methods.text_evolution import (
    FENCED,
    PLACEHOLDERS,
    REFLECTION_TOKENS,
    SOLVED_AT,
    Evolved,
    Judge,
    Record,
    Reflector,
    Search,
    View,
    dev_count,
    evolve_by_gepa,
    fenced_text,
    gepa_prompt,
    least_budget,
    split,
    too_close_to_call,
)
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
    Instruction,
    Metrics,
    Progress,
    Prompt,
    Standing,
    Task,
)

_BARREN = 20  # consecutive iterations without a valid instruction that end the search


@dataclass(frozen=True, kw_only=True)
class GepaOptions:
    """GEPA's options. The paper spends about 2,000 to 7,000 rollouts on a task.

    Attributes:
        budget: evaluations (one is one rollout), all before the first training batch.
        dev_size: training questions that instructions are scored on; the others are reflected on.
            Half of the training questions if there are fewer than 1.5 times as many.
        minibatch: questions shown to the reflector, on which a child must beat its parent.
        beam: parents that instructions are derived from in one iteration, drawn from the Pareto
            front.
        show_answers: whether the reflector is shown the ground truth.
        solved_at: the least reward of a success, as the reflector is told.
        reflection_tokens: the most tokens of a reflection prompt, by an estimate that is rather too
            high; longer responses are shortened in the middle.
        max_instruction_chars: length limit of a candidate, in characters.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["gepa"] = "gepa"
    budget: int = 6000
    dev_size: int = 300
    minibatch: int = 3
    beam: int = 1
    show_answers: bool = False
    solved_at: float = SOLVED_AT
    reflection_tokens: int = REFLECTION_TOKENS
    max_instruction_chars: int = 4000

    def __post_init__(self) -> None:
        for name in ("dev_size", "minibatch", "beam", "reflection_tokens", "max_instruction_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.budget <= self.dev_size:
            raise ValueError(
                f"budget is {self.budget}; expected more than dev_size, {self.dev_size}, which "
                "scoring the initial instruction costs alone"
            )


# ---- the search

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # within a phase


@dataclass(frozen=True, slots=True)
class Candidates:
    """The instructions of a phase with their scores, the initial one first.

    Attributes:
        scores: rewards, instructions × dev questions; greedy, one rollout each.
        evaluations: rollouts spent on the phase.
    """

    instructions: tuple[Instruction, ...]
    scores: tuple[tuple[float, ...], ...]
    evaluations: int = 0

    def mean(self, index: int) -> float:
        """Return an instruction's mean reward over dev."""
        return fmean(self.scores[index])

    @property
    def best(self) -> int:
        """Return the index of the highest mean; ties go to the earliest."""
        return max(range(len(self.scores)), key=lambda i: (self.mean(i), -i))


def evolve_instruction(
    dev: Sequence[Task],
    train: Sequence[Task],
    *,
    rollout: Rollout,
    llm: LLM,
    rules: InstructionRules,
    search: Search,
    view: View,
    seed_key: str,
    step: int,
    record: Recorder,
    description: str = "",
) -> Candidates:
    """Run one phase from `search.seed`. It is deterministic in its arguments and the replies.

    Records "gepa_phase", "gepa_progress", "gepa_phase_ended" and "best_instruction"; accepted
    instructions as "instruction_born" with critique and mean dev score, the others as
    "instruction_rejected".

    Args:
        dev: questions that instructions are scored on.
        train: questions that are reflected on.
        view: what the LLM is shown of rollouts.
        step: the step before which this happens.
        description: the environment, described to the LLM.

    Raises:
        EvolutionError: the LLM was asked and no reply met the contract, although its budget was
            not spent.
        CotuneError: raised by `rollout` or `llm`; an LLMError is recorded instead.
    """
    record("gepa_phase", dev=len(dev), train=len(train), budget=search.budget)
    judge = Judge(Prompt, rollout)
    lineage = _Lineage(search, step, record, getattr(llm, "origin", "") or _ORIGIN)
    reflector = InstructionReflector(llm, rules, lineage.invalid, record, view, description)
    lineage.critiques, lineage.shown = reflector.critiques, reflector.shown
    found = evolve_by_gepa(dev, train, judge, reflector, search, seed_key, lineage)
    health = LLMHealth()
    if reflector.asked and not reflector.valid and not reflector.spent:
        health.blame(reflector.reasons)
        expected = "a valid instruction within ``` blocks"
        health.failed(llm, record, "instruction", expected, last=True)
    if reflector.spent:
        health.ended(reflector.spent, record)
    candidates = Candidates(tuple(lineage.instructions), found.scores, judge.evaluations)
    _record_ended(candidates, found, reflector, search.budget, record)
    return candidates


def _record_ended(
    candidates: Candidates, found: Evolved, reflector: Reflector, budget: int, record: Recorder
) -> None:
    best, rest = candidates.best, range(len(found.texts))
    record(
        "gepa_phase_ended",
        evaluations=candidates.evaluations,
        budget=budget,
        asked=reflector.asked,
        proposed=reflector.proposed,
        lawful=reflector.valid,
        accepted=len(found.texts) - 1,
        initial_dev_score=candidates.mean(0),
        best_dev_score=candidates.mean(best),
    )
    others = sorted((i for i in rest if i != best), key=lambda i: (-candidates.mean(i), i))
    second = others[0] if others else None
    record(
        "best_instruction",
        id=candidates.instructions[best].id,
        weight=candidates.mean(best),
        observed_steps=0,
        observed_rollouts=len(found.scores[best]),
        runner_up=None if second is None else candidates.instructions[second].id,
        too_close_to_call=second is not None
        and too_close_to_call(found.scores[best], found.scores[second]),
    )


class _Lineage:
    """gepa's `Report` with ids: names accepted instructions and records events.

    Attributes:
        instructions: accepted instructions, in order.
        critiques: the LLM's critique before each text.
        shown: by text, the ids of the questions that it or an ancestor was derived from.
    """

    def __init__(self, search: Search, step: int, record: Recorder, origin: str = _ORIGIN) -> None:
        self._origin = origin
        self.instructions = [Instruction("i0", search.seed)]
        self.critiques: dict[str, str] = {}
        self.shown: Mapping[str, frozenset[str]] = {}
        self._ids = {search.seed: "i0"}
        self._step, self._record, self._budget = step, record, search.budget
        self._told = -1
        record("instruction_born", **asdict(self.instructions[0]), score=None, parent_score=None)

    def accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        instruction = Instruction(
            id=f"i{len(self.instructions)}",
            text=text,
            parent=self._ids[parent],
            origin=self._origin,
            born=self._step,
            critique=self.critiques.get(text, ""),
            shown=tuple(sorted(self.shown.get(text, ()))),
        )
        self.instructions.append(instruction)
        self._ids[text] = instruction.id
        self._record(
            "instruction_born", **asdict(instruction), score=score, parent_score=parent_score
        )

    def rejected(
        self, text: str, parent: str, score: float, parent_score: float, improved: bool
    ) -> None:
        reason = "no budget left to score it" if improved else "not above its parent"
        self._refuse(text, parent, reason, score, parent_score)

    def invalid(self, text: str, parent: str, reason: str) -> None:
        """Record that a text breaks the contract."""
        self._refuse(text, parent, reason, None, None)

    def _refuse(
        self, text: str, parent: str, reason: str, score: float | None, parent_score: float | None
    ) -> None:
        self._record(
            "instruction_rejected",
            reason=reason,
            text=text,
            parent=self._ids[parent],
            origin=self._origin,
            score=score,
            parent_score=parent_score,
        )

    def progress(self, evaluations: int, texts: int, best: float) -> None:
        """Recorded periodically: an iteration may be only six rollouts."""
        part = evaluations * _PROGRESS_EVENTS // self._budget
        if part == self._told:
            return
        self._told = part
        self._record(
            "gepa_progress",
            evaluations=evaluations,
            budget=self._budget,
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
_CRITIQUE_CHARS = 2000


def instruction_prompt(parent: str, examples: Sequence[Record], required: Iterable[str]) -> str:
    """Build the prompt: parent and examples in, critique and one new instruction out.

    Args:
        required: texts that the new instruction must contain.
    """
    prompt = gepa_prompt(parent, examples, prompt_template=_TEMPLATE)
    kept = ", ".join(required)
    keep = f"Keep these texts in the new instruction, letter by letter: {kept}\n\n" if kept else ""
    return f"{prompt}\n{keep}Provide the new instructions within ``` blocks."


def read_instruction(reply: str) -> tuple[str, str]:
    """Return (critique, instruction) from a reply; never raises.

    The critique is the text before the first block. A reply cut off within its reasoning is
    returned whole as the instruction, so that the contract rejects it.
    """
    said = without_reasoning(reply.strip(), FENCED).strip()
    if not said:
        return "", reply.strip()
    critique, fence, _ = said.partition("```")
    return critique.strip()[:_CRITIQUE_CHARS] if fence else "", fenced_text(said)


class InstructionReflector(Reflector):
    """Ask the LLM for instructions.

    Args:
        rules: the contract of an instruction.
        reject: records a text that breaks the contract: text, parent, reason.
        description: the environment, described to the LLM.

    Attributes:
        critiques: the LLM's critique before each valid instruction.
    """

    def __init__(
        self,
        llm: LLM,
        rules: InstructionRules,
        reject: Callable[[str, str, str], None],
        record: Recorder,
        view: View,
        description: str = "",
    ) -> None:
        super().__init__(llm, record, view)
        self._rules, self._reject_text = rules, reject
        self._surroundings = surroundings(description)
        self._tried.append(rules.original)
        self._critique = ""
        self.critiques: dict[str, str] = {}

    def _prompt(self, parent: str, examples: Sequence[Record]) -> str:
        kept = dict.fromkeys((*protocol_tags(self._rules.original), *self._rules.required))
        return self._surroundings + instruction_prompt(parent, examples, kept)

    def _read(self, reply: str) -> str:
        self._critique, text = read_instruction(reply)
        return text

    def _broken(self, text: str, parent: str, tasks: Sequence[Task]) -> str | None:
        if placed := [p for p in PLACEHOLDERS if p in text]:
            return f"holds {', '.join(placed)}, which only the reflection prompt may"
        reason = self._rules.check(text, parent, self._tried, tasks)
        if reason is None:
            self.critiques[text] = self._critique
        return reason

    def _reject(self, text: str, parent: str, reason: str) -> None:
        self._reject_text(text, parent, reason)


# ---- the strategy


class Gepa(StaticStrategy):
    """Evolve the instruction once, at the first step; every rollout then uses the best one.

    With `training.frozen` nothing else happens: "prompt only". Otherwise the policy is then trained
    as in GRPO with a static instruction: "prompt before RL".

    The tags of the initial instruction are the protocol's, and every candidate keeps them. Only
    training questions are scored or reflected on.
    """

    def __init__(self, options: GepaOptions, context: Context) -> None:
        self._rules = InstructionRules.of(context, options.max_instruction_chars)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; GEPA expects 2 or more, to score and "
                "reflect on"
            )
        dev = dev_count(len(context.tasks), options.dev_size)
        if options.budget < (least := least_budget(dev, options.minibatch)):
            raise ConfigError(
                f"strategy.budget is {options.budget}; expected at least {least}, to score the initial "
                f"instruction and another on {dev} questions; raise it, or lower strategy.dev_size"
            )
        super().__init__(context.instruction)
        self.options, self.seed = options, context.seed
        self._tasks, self._description = context.tasks, context.description
        self._initial = Instruction("i0", context.instruction)
        self._found: Candidates | None = None

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the whole search on the first call; do nothing on later ones.

        Raises:
            EvolutionError: no proposal met the contract.
        """
        if self._found is not None:
            return {}
        options, key = self.options, f"gepa/{self.seed}"
        dev, train = split(self._tasks, options.dev_size, key)
        self._found = found = evolve_instruction(
            dev,
            train,
            rollout=rollout,
            llm=llm,
            rules=self._rules,
            search=Search(
                seed=self._initial.text,
                budget=options.budget,
                beam=options.beam,
                minibatch=options.minibatch,
                barren=_BARREN,
            ),
            view=View(
                show_answers=options.show_answers,
                solved_at=options.solved_at,
                tokens=options.reflection_tokens,
            ),
            seed_key=key,
            step=progress.step,
            record=record,
            description=self._description,
        )
        return {
            "gepa/evaluations": float(found.evaluations),
            "gepa/instructions": float(len(found.instructions)),
            "gepa/initial_dev_score": found.mean(0),
            "gepa/best_dev_score": found.mean(found.best),
        }

    def best_prompt(self) -> Prompt:
        return Prompt(self._best().text)

    def best_instruction_id(self) -> str:
        return self._best().id

    def _best(self) -> Instruction:
        """Return the prompt with the highest mean dev reward; the initial one before the search."""
        return self._initial if self._found is None else self._found.instructions[self._found.best]

    def standings(self) -> list[Standing]:
        """Return the accepted candidates, weighted by mean dev score; [] before the search."""
        found = self._found
        return (
            [
                Standing(one, weight=found.mean(i), observed_rollouts=len(found.scores[i]))
                for i, one in enumerate(found.instructions)
            ]
            if found
            else []
        )

    def candidates(self) -> Candidates | None:
        """Return all that the search accepted; None before it."""
        return self._found

    def state_dict(self) -> State:
        found = self._found
        return {
            "initial": self._initial.text,
            "found": None
            if found is None
            else {
                "instructions": [asdict(instruction) for instruction in found.instructions],
                "scores": [list(row) for row in found.scores],
                "evaluations": found.evaluations,
            },
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state is from a run with a different initial instruction."""
        if state["initial"] != self._initial.text:
            raise ConfigError(
                f"the saved run's initial instruction is {state['initial']!r}, this run's "
                f"{self._initial.text!r}; expected the same: restore the run file's"
            )
        found = state["found"]
        self._found = None
        if found is not None:
            self._found = Candidates(
                tuple(Instruction(**fields) for fields in found["instructions"]),
                tuple(tuple(row) for row in found["scores"]),
                int(found["evaluations"]),
            )


# ---- the method's entry in the registry


def _check(options: GepaOptions, shape: RunShape) -> None:
    if shape.rollout_budget is None:
        return
    batch = 0 if shape.frozen else shape.questions_per_step * shape.group_size
    if options.budget + batch > shape.rollout_budget:
        follows = f", and a batch of {batch} follows it" if batch else ""
        raise ValueError(
            f"strategy.budget is {options.budget}{follows}, more than training.rollout_budget, "
            f"{shape.rollout_budget}; lower strategy.budget, or raise training.rollout_budget"
        )


def _cost(options: GepaOptions, shape: RunShape) -> Cost:
    calls = math.ceil(options.budget / options.minibatch)
    shown = Proposals(calls, options.max_instruction_chars, options.minibatch)
    return Cost(1, {"evolve": options.budget}, (shown,))


def _scaled(options: GepaOptions) -> GepaOptions:
    return replace(options, dev_size=2, budget=24, minibatch=2, beam=1)


METHOD = Method(
    options=GepaOptions,
    build=Gepa,
    label="GEPA",
    about="the instruction evolved before the first step",
    card=f"GRPO under an instruction that GEPA ({arxiv('2507.19457')}) evolved before the first step",
    card_frozen=f"GEPA ({arxiv('2507.19457')}) on the instruction",
    tags=("grpo", "gepa"),
    evolves=("instruction",),
    offline_worlds=("geo",),
    uses_batches=False,
    check=_check,
    cost=_cost,
    scaled=_scaled,
)
