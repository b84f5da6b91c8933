"""The part of the offline rules that reads GEPA's reflection prompt and writes a hint.

Like `cotune.worlds.rules` it is no language model: it tells what a failed example is about from a
fixed list and answers with sentences from fixed lists. None of them is one of the bundled policies'
training sentences; a test holds the sets apart.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cotune.errors import LLMError
from cotune.methods.gepa.gepa import ABOUT_AN_AGENT
from cotune.types import Completion
from cotune.worlds.rules import REMEDIES, Example, failure_modes
from cotune.worlds.rules import RulesLLM as ProposalRules

ADVICE: dict[str, tuple[str, ...]] = {
    "addition": (
        "When you add, write the columns and carry.",
        "For additions, go column by column from the right.",
        "Write sums column by column.",
        "Add from the right, column by column, and carry.",
        "To add, work in columns with carries.",
        "In additions, go from the right and write each carry.",
    ),
    "subtraction": (
        "When you subtract, go by columns and borrow.",
        "For subtractions, show each borrow from the next column.",
        "Write differences column by column with borrowing.",
        "Subtract in columns and write each borrow.",
        "To subtract, borrow from the next column where needed.",
        "In subtractions, work from the right and borrow.",
    ),
    "multiplication": (
        "When you multiply, take one digit at a time and carry.",
        "For products, go digit by digit from the right.",
        "Write each product one digit at a time.",
        "Multiply every digit by the number and carry.",
        "To multiply, go digit by digit with carries.",
        "In multiplications, work one digit at a time from the right.",
    ),
    "word problem": (
        "When you solve a story, write both steps.",
        "For word problems, work out the first step first.",
        "Write both steps of a story.",
        "Solve stories one step at a time, first result first.",
        "To solve a word problem, show each step.",
        "In a story with two steps, write the first result.",
    ),
}
"""What helps with each kind of problem of the bundled world `arithmetic`."""

GENERAL = ("Be careful with the numbers.", "Read it twice.", "This is an important exam.")

_MARK = "I provided an assistant with the following instructions"
_EXAMPLE = re.compile(
    r"^# Example \d+\n## Inputs\n(.*?)\n## Generated Outputs\n(.*?)\n## Feedback\n(.*?)(?=^# Example|\Z|\n```)",
    re.DOTALL | re.MULTILINE,
)
_ENDED = re.compile(r"The response was ended by: ([^.]*)\.")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass(frozen=True, slots=True)
class Shown:
    """One example of a reflection prompt."""

    question: str
    response: str
    feedback: str

    @property
    def failed(self) -> bool:
        return not self.feedback.startswith("Correct")


def is_gepa_prompt(prompt: str) -> bool:
    """Whether a prompt is GEPA's (`gepa.strategies.instruction_proposal`), for whatever text."""
    return prompt.startswith(_MARK)


def is_instruction_prompt(prompt: str) -> bool:
    """Whether a prompt of GEPA's asks for an agent's instruction (`methods.gepa`)."""
    return is_gepa_prompt(prompt) and ABOUT_AN_AGENT in prompt


def read_shown(prompt: str) -> list[Shown]:
    """The examples of a reflection prompt."""
    return [Shown(*(part.strip() for part in match)) for match in _EXAMPLE.findall(prompt)]


def current_text(prompt: str) -> str:
    """The hint or instruction that the examples were sampled under; "" for an empty seed."""
    match = re.search(r"```\n(.*?)\n```", prompt, re.DOTALL)
    if match is None:
        raise LLMError("the rules found no current instruction in the reflection prompt")
    return match[1].strip()


def kind_of(question: str) -> str | None:
    """The kind of an arithmetic problem; None for anything else."""
    for kind, pattern in (
        ("addition", r"\d \+ \d"),
        ("subtraction", r"\d - \d"),
        ("multiplication", r"\d \* \d"),
        ("word problem", r"How many .* (?:left|that)\?"),
    ):
        if re.search(pattern, question):
            return kind
    return None


def topics(example: Shown) -> list[str]:
    """What a failed example is about, as keys of the world's advice."""
    if kind := kind_of(example.question):
        return [kind]
    return sorted(failure_modes(Example(example.question, example.response, ("",))))


def write_hint(prompt: str, rng: random.Random, *, reflect: bool) -> str:
    """A hint in GEPA's reply format.

    One sentence for one thing that the failed examples show; alone, or with what the current hint
    says of other things.

    Args:
        reflect: False is the control: a sentence about anything, no example read.

    Raises:
        LLMError: the prompt shows no example that failed.
    """
    failed = [example for example in read_shown(prompt) if example.failed]
    counts = Counter(topic for example in failed for topic in topics(example))
    if not counts:
        raise LLMError("the rules found no failed example of a bundled world to reflect on")
    advice: dict[str, tuple[str, ...]] = {**ADVICE, **REMEDIES}
    if not reflect:
        counts = Counter[str](list(ADVICE if kind_of(failed[0].question) else REMEDIES))
    topic = rng.choices(list(counts), list(counts.values()))[0]
    now = [s for s in _SENTENCE_END.split(current_text(prompt)) if s]
    kept = [s for s in now if s not in advice[topic]] if rng.random() < 0.4 else []
    fresh = rng.choice([s for s in advice[topic] if s not in now])
    written = [*kept, fresh, *([rng.choice(GENERAL)] if rng.random() < 0.15 else [])]
    return f"It fails at: {topic}.\n\n```\n{' '.join(dict.fromkeys(written))}\n```"


def failures_of_agent(prompt: str) -> list[Example]:
    """The failed examples of a prompt for an agent's instruction, as INSPO's reflection has them."""
    failed = [shown for shown in read_shown(prompt) if shown.failed]
    return [
        Example(
            shown.question,
            "".join(
                (shown.response, *(f"\n[stopped: {how}]" for how in _ENDED.findall(shown.feedback)))
            ),
            ("",),  # the truth is not shown
        )
        for shown in failed
    ]


class RulesLLM:
    """The offline stand-in for the optimizer LLM: INSPO's prompts and GEPA's, for hints and instructions.

    Args:
        seed: of the draws, which the prompt keys besides.
        remedies: "random" is the control: no failure is read.
    """

    def __init__(
        self, seed: int = 0, remedies: Literal["reflected", "random"] = "reflected"
    ) -> None:
        self._seed, self._remedies = seed, remedies
        self._proposals = ProposalRules(seed, remedies)

    def complete(self, prompt: str) -> Completion:
        """Raises LLMError for a prompt that is neither's. No tokens are used."""
        if not is_gepa_prompt(prompt):
            return self._proposals.complete(prompt)
        rng = random.Random(f"rules/{self._seed}/{prompt}")
        if is_instruction_prompt(prompt):
            failures = failures_of_agent(prompt)
            if not failures:
                raise LLMError("the rules found no failed example to reflect on")
            critique, write = self._proposals.reflect(current_text(prompt), failures)
            return Completion(f"{critique}\n\n```\n{' '.join(write(rng))}\n```")
        return Completion(write_hint(prompt, rng, reflect=self._remedies == "reflected"))
