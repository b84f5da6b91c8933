"""Demonstrations: how the bundled policy is taught to act under an instruction, unreliably.

Under a plain instruction the demonstrator searches the whole question once and reads an answer
off whatever came back. Sentences of the instruction raise or lower the chance that it looks up
one entity at a time, that it plans, that it keeps to the evidence and that it uses the answer
tags. None is obeyed always, as with a real model.
"""

import random
import re
from collections import Counter
from dataclasses import dataclass

from cotune import Retriever
from cotune_lab.worlds.geo import GeoQuestion, GeoWorld
from cotune_lab.worlds.strict_tags import TAGS
from recipes.geo.phrases import Kind, sample_instruction

TOP_K = 3
_VALUE = re.compile(
    r"(?:capital|currency|population|time zone|dial code|internet domain|(?:city|country) in)"
    r" ([^,\n]+?)(?:,|\.?$)",
    re.M,
)


@dataclass(frozen=True)
class Rates:
    """Chances of one episode; every one of them between 0 and 1."""

    decompose: float
    plan: float
    wrong_answer: float
    answer_tag: float


Unprompted = tuple[float, float]
"""The chance to look up one entity at a time if no sentence asks for it: under an instruction
that asks for no plan, and under one that does."""

UNPROMPTED: Unprompted = (0.001, 0.003)


def rates(kinds: Counter[Kind], unprompted: Unprompted = UNPROMPTED) -> Rates:
    """Return how an instruction's sentences move the demonstrator.

    One sentence that asks to look up one entity at a time makes it do so in 65 % of episodes, with
    a plan in 80 %; two such sentences in 85 % and 92 %.

    Args:
        kinds: how many sentences of each kind the instruction holds.
        unprompted: the chances if no sentence asks for it.
    """
    decompositions, planned = kinds[Kind.DECOMPOSE], kinds[Kind.PLAN] > 0
    decompose = (unprompted[0], 0.65, 0.85, 0.90)[min(decompositions, 3)]
    if planned:
        decompose = (unprompted[1], 0.80, 0.92, 0.95)[min(decompositions, 3)]
    if kinds[Kind.BROAD]:
        decompose *= 0.35
    wrong = 0.25 if not kinds[Kind.EVIDENCE] else 0.05
    if kinds[Kind.MEMORY]:
        wrong = 0.50
    if not planned:
        wrong += 0.12 * (1 - wrong)
    return Rates(
        decompose=decompose,
        plan=0.90 if planned else 0.10,
        wrong_answer=wrong,
        answer_tag=0.98 if kinds[Kind.ANSWER_TAG] else 0.60,
    )


@dataclass(frozen=True)
class Demonstration:
    """One episode: the prompt's two halves, then segments (text, written by the policy)."""

    instruction: str
    question: GeoQuestion
    segments: tuple[tuple[str, bool], ...]

    def rename(self, names: dict[str, str]) -> "Demonstration":
        """Return the episode with names replaced everywhere but in the instruction."""

        def swap(text: str) -> str:
            for old, new in names.items():
                text = text.replace(old, new)
            return text

        question = GeoQuestion(swap(self.question.text), self.question.chain)
        segments = tuple((swap(text), by_policy) for text, by_policy in self.segments)
        return Demonstration(self.instruction, question, segments)


class Demonstrator:
    """Writes demonstrations over the training cities of a world."""

    def __init__(
        self, world: GeoWorld, retriever: Retriever, unprompted: Unprompted = UNPROMPTED
    ) -> None:
        self.world, self.retriever, self.unprompted = world, retriever, unprompted

    def sample(self, rng: random.Random) -> Demonstration:
        """Draw a question of 1, 2 or 3 hops and act it out under a fresh instruction.

        In half of them the chain's names are replaced by made-up ones: copying a name from the
        question into a search has to work for names that no training question held.
        """
        question = self.world.question(rng, rng.choices((1, 2, 3), (0.24, 0.38, 0.38))[0], "train")
        instruction, kinds = sample_instruction(rng)
        segments = self.act(rng, question, rates(kinds, self.unprompted))
        demonstration = Demonstration(instruction, question, tuple(segments))
        if rng.random() < 0.5:
            return demonstration.rename(new_names(rng, question))
        return demonstration

    def act(
        self, rng: random.Random, question: GeoQuestion, chance: Rates
    ) -> list[tuple[str, bool]]:
        """Return one episode as (text, own) segments; observations are not the policy's own."""
        plan = rng.random() < chance.plan
        decompose = rng.random() < chance.decompose
        guess = rng.random() < chance.wrong_answer
        tagged = rng.random() < chance.answer_tag
        walk = self._decomposed if decompose else self._broad
        segments, answer = walk(rng, question, plan)
        if guess:
            answer = self._wrong_value(rng)
        last = f"<answer> {answer} </answer>" if tagged else f"The answer is {answer}."
        return _joined([*segments, (last, True)])

    def _decomposed(
        self, rng: random.Random, question: GeoQuestion, plan: bool
    ) -> tuple[list[tuple[str, bool]], str]:
        segments: list[tuple[str, bool]] = []
        if plan:
            steps = ", then ".join(hop.attribute for hop in question.chain)
            segments.append((f"<think> I need the {steps}. </think>\n", True))
        for hop in question.chain:
            passages = self._search(segments, hop.entity)
            if not any(p.startswith(f"{hop.entity} is a ") for p in passages):
                return segments, self._wrong_value(rng)
            if plan:
                note = f"<think> The {hop.attribute} of {hop.entity} is {hop.value}. </think>\n"
                segments.append((note, True))
        return segments, question.answer

    def _broad(
        self, rng: random.Random, question: GeoQuestion, plan: bool
    ) -> tuple[list[tuple[str, bool]], str]:
        segments: list[tuple[str, bool]] = []
        if plan:
            segments.append(("<think> I search the question. </think>\n", True))
        passages = self._search(segments, question.text.removeprefix("What is the ").rstrip("?"))
        first = question.chain[0].entity
        if question.hops == 1 and any(p.startswith(f"{first} is a ") for p in passages):
            return segments, question.answer
        values = _VALUE.findall("\n".join(passages))
        return segments, rng.choice(values) if values else self._wrong_value(rng)

    def _search(self, segments: list[tuple[str, bool]], query: str) -> list[str]:
        passages = self.retriever.search([query], TOP_K)[0]
        segments.append((f"<search> {query} </search>", True))
        segments.append((TAGS.information(passages), False))
        return passages

    def _wrong_value(self, rng: random.Random) -> str:
        facts = rng.choice(list(self.world.countries.values()))
        return rng.choice(list(facts.values()))


def _joined(segments: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Join neighbouring segments of one author: the policy writes them in one go."""
    joined: list[tuple[str, bool]] = []
    for text, by_policy in segments:
        if joined and joined[-1][1] == by_policy:
            joined[-1] = (joined[-1][0] + text, by_policy)
        else:
            joined.append((text, by_policy))
    return joined


_ONSETS = [
    "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kl", "st", "tr", "gr", "sh", "ch", "th",
]  # fmt: skip
_RHYMES = ["a", "e", "i", "o", "u", "an", "el", "in", "or", "us", "ai", "on", "ar"]


def new_names(rng: random.Random, question: GeoQuestion) -> dict[str, str]:
    """Return a made-up name for every place of the chain, longest first to replace whole names."""
    places = {hop.entity for hop in question.chain}
    places |= {hop.value for hop in question.chain if hop.attribute in ("country", "capital")}

    def word() -> str:
        syllables = rng.choices((1, 2, 3, 4), (2, 4, 3, 1))[0]
        return "".join(rng.choice(_ONSETS) + rng.choice(_RHYMES) for _ in range(syllables))

    def name() -> str:
        return " ".join(word().capitalize() for _ in range(rng.choices((1, 2, 3), (6, 3, 1))[0]))

    return {place: name() for place in sorted(sorted(places), key=len, reverse=True)}
