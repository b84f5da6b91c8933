"""An offline stand-in for the proposing LLM: rules that read the proposers' prompts.

`RulesLLM` is for worlds made for experiments, and for tests. It reads the prompt text that a model would get, and has
the rules of a world write instructions or hints in the expected reply format. It knows nothing but its world, so a
result obtained with it shows how the training loop behaves, not how well an LLM reflects.

The rules of a world with a few ways of working are `Remedies`, a sentence for each lack of a failed rollout. They keep
an instruction's own sentences, hold one remedy at a time, and add or drop sentences that ask for nothing. They do not
know which remedy is better: verification has to find out.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import yaml

from cotune.errors import LLMError
from cotune.methods.fst import ABOUT_AN_AGENT
from cotune.methods.inspo.proposers import KEEP
from cotune.types import Completion

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_KEEPS_STYLE = 0.7  # chance that a candidate keeps all sentences that ask for nothing


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, as a reflection prompt shows it: INSPO's with accepted answers, GEPA's with feedback."""

    question: str
    response: str
    answers: tuple[str, ...] = ("",)
    feedback: str = ""


Writer = Callable[[random.Random], list[str]]
"""Writes a candidate, as sentences."""


class Rules(Protocol):
    """The rules of a world: how they write instructions and hints from failed examples."""

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]: ...

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]: ...

    def paraphrase(self, parent: str) -> Writer: ...


class Remedies:
    """The sentences of a world's rules.

    Args:
        remedies: for each lack, in the critique's wording, the sentences that remedy it.
        style: sentences that ask for nothing.
        lacks: (question, failed response) to what it lacks.
    """

    def __init__(
        self,
        remedies: Mapping[Any, Sequence[str]],
        style: Sequence[str],
        lacks: Callable[[str, str], Sequence[str]],
    ) -> None:
        self._remedies = remedies
        self._style = style
        self._lacks = lacks
        self._lack_of = {s: lack for lack, sentences in remedies.items() for s in sentences}

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate with one remedy."""
        counts = Counter(self._all_lacks(failed))
        critique = "What went wrong:\n" + "\n".join(f"- {lack} ({n})" for lack, n in counts.items())

        def write(rng: random.Random) -> list[str]:
            lack = rng.choices(list(counts), list(counts.values()))[0]
            return self._with_remedy(parent, self._fresh(lack, parent, rng), rng)

        return critique, write

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]:
        """Return no critique, and a hint of one sentence."""
        return "", self._fresh(rng.choice(self._all_lacks(failed)), current, rng)

    def paraphrase(self, parent: str) -> Writer:
        """Return a function that writes the parent's sentences between sentences that ask for nothing."""

        def write(rng: random.Random) -> list[str]:
            sentences = [s for s in sentences_of(parent) if s not in self._style]
            for _ in range(rng.choice((1, 1, 2))):
                sentences.insert(rng.choice((0, len(sentences))), rng.choice(self._style))
            return list(dict.fromkeys(sentences))

        return write

    def _all_lacks(self, failed: Sequence[Example]) -> list[str]:
        return [lack for e in failed for lack in self._lacks(e.question, e.response)]

    def _fresh(self, lack: str, current: str, rng: random.Random) -> str:
        return rng.choice([s for s in self._remedies[lack] if s not in current])

    def _with_remedy(self, parent: str, remedy: str, rng: random.Random) -> list[str]:
        """Return the parent's sentences with the remedy in place of earlier ones."""
        sentences = self._without_remedies(sentences_of(parent), remedy, rng)
        styles = [s for s in sentences if s in self._style]
        if styles and rng.random() >= _KEEPS_STYLE:
            sentences.remove(rng.choice(styles))
        sentences.insert(rng.choice((0, len(sentences))), remedy)
        return list(dict.fromkeys(sentences))

    def _without_remedies(
        self, sentences: Sequence[str], remedy: str, rng: random.Random
    ) -> list[str]:
        return [s for s in sentences if s not in self._lack_of]


def sentences_of(text: str) -> list[str]:
    """Split a text into its sentences."""
    return [s for s in _SENTENCE_END.split(text) if s]


# ---- those of `ladder`

# A failed answer without lines calls for any procedure; one with lines calls for either of the other two.
_FILE = Path(__file__).with_name("ladder_sentences.yaml")
_SENTENCES: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
REMEDIES: Mapping[str, Sequence[str]] = _SENTENCES["remedies"]
"""The sentences that remedy each lack, by the critique's wording of it."""
# The lack that a response does not have, by its title.
_REMEDIED = dict(zip(("Together:", "One by one:", "In order:"), REMEDIES, strict=True))


def lacks(response: str) -> list[str]:
    """Return what a failed response lacks."""
    remedied = next((lack for title, lack in _REMEDIED.items() if title in response), None)
    return [lack for lack in REMEDIES if lack != remedied]


RULES = Remedies(REMEDIES, _SENTENCES["style"], lambda _question, response: lacks(response))


# ---- the LLM

_MARK = "I provided an assistant with the following instructions"
_EXAMPLE = re.compile(
    r"^# Example \d+\n## Inputs\n(.*?)\n## Generated Outputs\n(.*?)\n## Feedback\n(.*?)(?=^# Example|\Z|\n```)",
    re.DOTALL | re.MULTILINE,
)
_ENDED = re.compile(r"The response was ended by: ([^.]*)\.")
_KEEP_LINE = re.compile(rf"^{re.escape(KEEP)} .*\n", re.MULTILINE)
_FAILURE = re.compile(
    r"Question:(?P<question>.*?)\nResponse:(?P<response>.*?)(\nCorrect answer:(?P<answers>[^\n]*))?"
    r"(\nFeedback:.*)?",
    re.DOTALL,
)


def is_gepa_prompt(prompt: str) -> bool:
    """Return whether a prompt is `gepa.strategies.instruction_proposal`'s."""
    return _MARK in prompt


def read_examples(prompt: str) -> list[Example]:
    """Return the examples of one of GEPA's prompts, or the failed ones of one of INSPO's."""
    if is_gepa_prompt(prompt):
        blocks = [[part.strip() for part in match] for match in _EXAMPLE.findall(prompt)]
        return [Example(question, response, feedback=text) for question, response, text in blocks]
    blocks = re.findall(r"<example>\s*(Question:.*?)\n</example>", prompt, re.DOTALL)
    return [
        Example(
            match["question"].strip(),
            match["response"].strip(),
            tuple(a.strip() for a in (match["answers"] or "").split("|")),
        )
        for match in map(_FAILURE.fullmatch, blocks)
        if match
    ]


class RulesLLM:
    """Write instructions and hints by a world's rules; deterministic for a seed and a prompt."""

    def __init__(self, seed: int = 0, rules: Rules = RULES) -> None:
        self.seed = seed
        self._rules = rules

    def rules_for(self, *, question: str = "", instruction: str = "") -> Rules:
        """Return the rules for a failed question, or for an instruction that is paraphrased."""
        return self._rules

    def complete(self, prompt: str) -> Completion:
        """Reply to a prompt of INSPO's proposers, or to GEPA's for a hint or an instruction.

        Raises LLMError: any other prompt, or one that shows nothing to reflect on.
        """
        # The rules keep their parent's text, so the line on required texts changes nothing.
        rng = random.Random(f"rules/{self.seed}/{_KEEP_LINE.sub('', prompt)}")
        if is_gepa_prompt(prompt):
            return Completion(self._reply_to_gepa(prompt, rng))
        return Completion(self._propose(prompt, rng))

    def _reply_to_gepa(self, prompt: str, rng: random.Random) -> str:
        failed = [e for e in read_examples(prompt) if not e.feedback.startswith("Correct")]
        current = re.search(r"```\n(.*?)\n```", prompt, re.DOTALL)
        if not failed:
            raise LLMError("the rules found no failed example to reflect on")
        if current is None:
            raise LLMError("the rules found no current instruction in the reflection prompt")
        rules = self.rules_for(question=failed[0].question)
        text = current[1].strip()
        if ABOUT_AN_AGENT in prompt:
            critique, write = rules.reflect(text, [_with_end(example) for example in failed])
            text = " ".join(write(rng))
        else:
            critique, text = rules.write_hint(text, failed, rng)
        return f"{critique}\n\n```\n{text}\n```".lstrip()

    def _propose(self, prompt: str, rng: random.Random) -> str:
        """Reply to a prompt of `methods.inspo.proposers`."""
        count = re.search(r"\b[Gg]ive (\d+) different", prompt)
        parent = re.search(r"<ins_0>\s*(.*?)\s*</ins_0>", prompt, re.DOTALL)
        if count is None or parent is None:
            raise LLMError("RulesLLM reads the proposers' prompts only; configure `llm` for others")
        if examples := read_examples(prompt):
            rules = self.rules_for(question=examples[0].question)
            critique, write = rules.reflect(parent[1], examples)
        else:
            critique = ""
            write = self.rules_for(instruction=parent[1]).paraphrase(parent[1])
        candidates = [" ".join(write(rng)) for _ in range(int(count[1]))]
        body = "\n\n".join(f"<ins_{i}>\n{c}\n</ins_{i}>" for i, c in enumerate(candidates, 1))
        return f"{critique}\n\n{body}".strip()


def _with_end(example: Example) -> Example:
    """Return one of GEPA's examples as INSPO's show it: the response says what ended it."""
    ends = [f"\n[stopped: {how}]" for how in _ENDED.findall(example.feedback)]
    return replace(example, response="".join((example.response, *ends)))
