"""Evolve instructions with GEPA under the current policy: the prompt, and what a search records."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from cotune.methods.contract import InstructionRules
from cotune.methods.method import RunShape
from cotune.methods.proposals import Draft, record_born, rejections, surroundings
from cotune.methods.text_evolution import Record, Report, gepa_prompt
from cotune.protocols import LLM, Recorder
from cotune.types import Instruction

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # within a phase


class Births(Report):
    """Names accepted instructions and records the events of a search.

    Args:
        lineage: all instructions so far, in order of birth; the search starts from one of them.
        drafts: the valid texts, filled by the search.
        step: the step before which this happens.
        llm: writes the instructions.
        budget: evaluations of the search.

    Attributes:
        instructions: all instructions, the new ones last.
        reject: records that a text did not join.
    """

    def __init__(
        self,
        lineage: Sequence[Instruction],
        drafts: Mapping[str, Draft],
        step: int,
        record: Recorder,
        llm: LLM,
        budget: int,
    ) -> None:
        self.instructions = list(lineage)
        self._ids = {instruction.text: instruction.id for instruction in lineage}
        self._drafts = drafts
        self._step = step
        self._record = record
        self._budget = budget
        self._origin = getattr(llm, "origin", "") or _ORIGIN
        self.reject = rejections(record, self._ids, self._origin)
        self._part = -1  # of the budget, when progress was last recorded

    def accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        draft = self._drafts[text]
        instruction = Instruction(
            id=f"i{len(self.instructions)}",
            text=text,
            parent=self._ids[parent],
            origin=self._origin,
            born=self._step,
            critique=draft.critique,
            shown=tuple(sorted(draft.shown)),
        )
        self.instructions.append(instruction)
        self._ids[text] = instruction.id
        record_born(instruction, self._record, score, parent_score)

    def rejected(
        self, text: str, parent: str, score: float, parent_score: float, improved: bool
    ) -> None:
        reason = "no budget left to score it" if improved else "not above its parent"
        self.reject(text, parent, reason, score, parent_score)

    def progress(self, evaluations: int, texts: int, best: float) -> None:
        """Recorded periodically: an iteration may be only six rollouts."""
        part = evaluations * _PROGRESS_EVENTS // self._budget
        if part == self._part:
            return
        self._part = part
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
    texts = ", ".join(required)
    keep = (
        f"Keep these texts in the new instruction, letter by letter: {texts}\n\n" if texts else ""
    )
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
    return lambda parent, examples: about + instruction_prompt(parent, examples, rules.kept_texts)
