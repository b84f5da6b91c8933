"""Evolve an instruction with GEPA under the current policy: what the methods `gepa` and `fst` share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from cotune.methods.contract import InstructionRules, protocol_tags
from cotune.methods.method import RunShape
from cotune.methods.proposals import (
    Draft,
    ProposalAccount,
    record_born,
    record_rejected,
    surroundings,
)
from cotune.methods.text_evolution import (
    Judge,
    Record,
    Reflector,
    Report,
    Search,
    evolve_by_gepa,
    gepa_prompt,
)
from cotune.protocols import LLM, Recorder
from cotune.types import Instruction, Task

# ---- the search

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # within a phase


@dataclass(frozen=True, slots=True)
class Candidates:
    """The instructions of a phase with their scores; the one that it started from is the first.

    Attributes:
        scores: rewards, instructions × dev questions; one rollout each.
        evaluations: rollouts spent on the phase.
        lost: of these, rollouts that ended in an environment error.
    """

    instructions: tuple[Instruction, ...]
    scores: tuple[tuple[float, ...], ...]
    evaluations: int = 0
    lost: int = 0

    def mean(self, index: int) -> float:
        """Return an instruction's mean reward over dev."""
        return fmean(self.scores[index])

    @property
    def best(self) -> int:
        """Return the index of the highest mean; ties go to the earliest."""
        return self.ranked[0]

    @property
    def ranked(self) -> list[int]:
        """Return all indices, the highest mean first; ties go to the earliest."""
        return sorted(range(len(self.scores)), key=lambda i: (-self.mean(i), i))


def evolve_instruction(
    dev: Sequence[Task],
    train: Sequence[Task],
    *,
    judge: Judge,
    llm: LLM,
    rules: InstructionRules,
    search: Search,
    show_answers: bool,
    seed_key: str,
    step: int,
    record: Recorder,
    account: ProposalAccount,
    known: Sequence[Instruction],
    description: str = "",
    last: bool = False,
) -> Candidates:
    """Run one phase from `search.seed`. It is deterministic in its arguments and the replies.

    Records "gepa_phase", "gepa_progress" and "gepa_phase_ended"; accepted instructions as
    "instruction_born" with critique and mean dev score, the others as "instruction_rejected".

    Args:
        dev: questions that instructions are scored on.
        train: questions that are reflected on.
        judge: rolls out under an instruction.
        show_answers: whether the LLM is shown the ground truth.
        step: the step before which this happens.
        account: asks the LLM, and ends a run in which it is useless.
        known: all instructions so far, in order of birth; the seed is one of them.
        description: the environment, described to the LLM.
        last: whether no other phase follows.

    Raises:
        EvolutionError: see `ProposalAccount.end_phase`.
        CotuneError: raised by the rollout or `llm`; an LLMError is recorded instead.
    """
    record("gepa_phase", dev=len(dev), train=len(train), budget=search.budget)
    lineage = _Lineage(known, search, step, record, getattr(llm, "origin", "") or _ORIGIN)
    account.begin(
        llm,
        record,
        rules.check,
        lineage.refused,
        tried=[rules.original, *(one.text for one in known)],
    )
    reflector = Reflector(
        account,
        instruction_prompter(rules, description),
        show_answers,
        {one.text: one.shown for one in known},
    )
    lineage.drafts = reflector.drafts
    report = Report(lineage.accepted, lineage.rejected, lineage.progress)
    found = evolve_by_gepa(dev, train, judge, reflector, search, seed_key, report)
    reflector.end_phase(last)
    candidates = Candidates(
        tuple(map(lineage.of_text, found.texts)), found.scores, judge.evaluations, judge.lost
    )
    record(
        "gepa_phase_ended",
        evaluations=candidates.evaluations,
        budget=search.budget,
        asked=account.asked,
        proposed=account.answered,
        valid=account.valid,
        accepted=len(found.texts) - 1,
        initial_dev_score=candidates.mean(0),
        best_dev_score=candidates.mean(candidates.best),
    )
    return candidates


class _Lineage:
    """Receive a `Report` with ids: names accepted instructions and records events.

    Attributes:
        drafts: the valid texts.
    """

    def __init__(
        self,
        known: Sequence[Instruction],
        search: Search,
        step: int,
        record: Recorder,
        origin: str,
    ) -> None:
        self._origin = origin
        self._by_text = {one.text: one for one in known}
        self._count = len(known)
        self.drafts: dict[str, Draft] = {}
        self._step, self._record, self._budget = step, record, search.budget
        self._told = -1

    def of_text(self, text: str) -> Instruction:
        """Return the instruction with a text."""
        return self._by_text[text]

    def accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        draft = self.drafts[text]
        instruction = Instruction(
            id=f"i{self._count}",
            text=text,
            parent=self._by_text[parent].id,
            origin=self._origin,
            born=self._step,
            critique=draft.critique,
            shown=tuple(sorted(draft.shown)),
        )
        self._count += 1
        self._by_text[text] = instruction
        record_born(instruction, self._record, score, parent_score)

    def rejected(
        self, text: str, parent: str, score: float, parent_score: float, improved: bool
    ) -> None:
        reason = "no budget left to score it" if improved else "not above its parent"
        self.refused(text, parent, reason, score, parent_score)

    def refused(
        self,
        text: str,
        parent: str,
        reason: str,
        score: float | None = None,
        parent_score: float | None = None,
    ) -> None:
        """Record that a text did not join."""
        record_rejected(
            self._record, reason, text=text, parent=self._by_text[parent].id, origin=self._origin,
            score=score, parent_score=parent_score,
        )  # fmt: skip

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


def check_budget(budget: int, shape: RunShape, batches: int = 1) -> None:
    """Raise ValueError if a search before step 1 and the batches that must follow it cost too much."""
    if shape.rollout_budget is None:
        return
    batch = 0 if shape.frozen else shape.questions_per_step * shape.group_size
    if budget + batches * batch > shape.rollout_budget:
        some = (
            f"a batch of {batch} follows"
            if batches == 1
            else f"{batches} batches of {batch} follow"
        )
        follows = f", and {some} it" if batch else ""
        raise ValueError(
            f"strategy.budget is {budget}{follows}, more than training.rollout_budget, "
            f"{shape.rollout_budget}; lower strategy.budget, or raise training.rollout_budget"
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
    """Build the prompt: parent and examples in, critique and one new instruction out.

    Args:
        required: texts that the new instruction must contain.
    """
    prompt = gepa_prompt(parent, examples, prompt_template=_TEMPLATE)
    kept = ", ".join(required)
    keep = f"Keep these texts in the new instruction, letter by letter: {kept}\n\n" if kept else ""
    return f"{prompt}\n{keep}Provide the new instructions within ``` blocks."


def instruction_prompter(
    rules: InstructionRules, description: str = ""
) -> Callable[[str, Sequence[Record]], str]:
    """Return the function that builds a prompt from a parent and examples.

    Args:
        rules: the contract of an instruction.
        description: the environment, described to the LLM.
    """
    about = surroundings(description)
    kept = dict.fromkeys((*protocol_tags(rules.original), *rules.required))
    return lambda parent, examples: about + instruction_prompt(parent, examples, kept)
