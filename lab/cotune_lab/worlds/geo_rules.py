"""The offline rules for the world `geo`: what a failed search shows, and the sentences that remedy it.

No sentence of theirs is one of the bundled policies' training sentences, though every word is: the
policies have to generalise to them, as a real model would. A test keeps the sets apart.
"""

import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from pathlib import Path

import yaml

from cotune import LLMError
from cotune.worlds.rules_llm import Example, Writer, sentences_of


class Mode(StrEnum):
    """A failure that can be recognised in a rollout; the value is the critique's wording."""

    WHOLE_QUESTION = "searched the whole question"
    ONE_SEARCH = "one search only for a question of several hops"
    NEVER_SEARCHED = "never searched"
    NO_REASONING = "no reasoning before acting"
    NOT_IN_EVIDENCE = "the answer is not in the evidence shown"
    NO_ANSWER_TAG = "no answer tag"
    MALFORMED = "a malformed action or an error"
    OUT_OF_TURNS = "ran out of turns"
    TOO_LONG = "the answer is too long"


_FILE = Path(__file__).with_name("geo_sentences.yaml")
_SENTENCES = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
REMEDIES = {Mode(mode): tuple(texts) for mode, texts in _SENTENCES["remedies"].items()}
STYLE: tuple[str, ...] = tuple(_SENTENCES["style"])
"""Sentences that ask for nothing specific."""
CAUTION: tuple[str, ...] = tuple(_SENTENCES["caution"])
"""Sentences that ask for nothing, at the end of some hints."""
REWORDINGS = {frozenset((tag,)): tuple(texts) for tag, texts in _SENTENCES["rewordings"].items()}
"""By the tags that a sentence names: rewordings that ask for no more than the original."""

MAX_SENTENCES = 12
_MODE_OF = {sentence: mode for mode, sentences in REMEDIES.items() for sentence in sentences}
_TAG = re.compile(r"</?(\w+)>")
_WHOLE_TAG = re.compile(r"</?\w+>")
_WORD = re.compile(r"\w+")
_ERROR_OBSERVATION = re.compile(r"My previous action is invalid:.*?Let me try again\.", re.DOTALL)
_FAILED_SEARCH = "The search failed"
_EFFECTIVE = re.compile(
    r"\b(search\w*|query|look|hops?|steps?|plan|reason|think|evidence|results?|documents?|facts?"
    r"|memory|guess|verify|check|once|one)\b",
    re.IGNORECASE,
)
_LINK = re.compile(r"\b(of|where|who|whose|which|that)\b", re.IGNORECASE)


def failure_modes(example: Example) -> set[Mode]:
    """Return the failure modes that an example shows."""
    text = _ERROR_OBSERVATION.sub("", example.response)
    evidence = " ".join(re.findall(r"<information>(.*?)</information>", text, re.DOTALL))
    acts = re.sub(r"<information>.*?</information>", "", text, flags=re.DOTALL)
    queries: list[str] = re.findall(r"<search>(.*?)</search>", acts, re.DOTALL)
    answers: list[str] = re.findall(r"<answer>(.*?)</answer>", acts, re.DOTALL)
    first_act = re.search(r"<(?:search|answer)>", acts)
    reasoned = "<think>" in acts[: first_act.start() if first_act else len(acts)]
    stopped_late = (
        re.search(r"\[stopped: (turn|turn token|token|context) limit\]", acts) is not None
    )
    words = _words(example.question)
    several_hops = len(_LINK.findall(example.question)) >= 2
    shows = {
        Mode.WHOLE_QUESTION: any(4 * len(_words(q) & words) > 3 * len(words) for q in queries),
        Mode.ONE_SEARCH: several_hops and len(queries) == 1,
        Mode.NEVER_SEARCHED: not queries,
        Mode.NO_REASONING: not reasoned,
        Mode.NO_ANSWER_TAG: not answers and not stopped_late,
        Mode.MALFORMED: text != example.response or _FAILED_SEARCH in evidence,
        Mode.OUT_OF_TURNS: not answers and stopped_late,
    }
    if answers:
        answer = answers[-1].strip()
        shows[Mode.NOT_IN_EVIDENCE] = bool(queries) and answer.casefold() not in evidence.casefold()
        longest = max(len(_WORD.findall(a)) for a in example.answers)
        shows[Mode.TOO_LONG] = len(_WORD.findall(answer)) > 2 * longest + 3
    return {mode for mode, is_shown in shows.items() if is_shown}


def _words(text: str) -> set[str]:
    return {w.casefold() for w in _WORD.findall(text)} - {"what", "is", "the", "a", "an", "of"}


def is_style(sentence: str) -> bool:
    """Return whether a sentence names no tag and asks for nothing specific."""
    return not (_TAG.search(sentence) or _EFFECTIVE.search(sentence) or sentence in _MODE_OF)


def with_advice(current: str, advice: Sequence[str], rng: random.Random) -> str:
    """Return a hint with one of the sentences of advice, and at times the current hint's others."""
    sentences = sentences_of(current)
    others = [s for s in sentences if s not in advice] if rng.random() < 0.4 else []
    fresh = rng.choice([s for s in advice if s not in sentences])
    written = [*others, fresh, *([rng.choice(CAUTION)] if rng.random() < 0.15 else [])]
    return " ".join(dict.fromkeys(written))


class GeoRules:
    """Several remedies at a time, in sentences that keep every tag of their parent."""

    def reflect(self, parent: str, failed: Sequence[Example]) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate with remedies of 1 to 3 modes."""
        counts = Counter(mode for e in failed for mode in sorted(failure_modes(e)))
        weights = {mode: n * n for mode, n in counts.most_common()}
        lines = [f"- {mode} ({n} of {len(failed)})" for mode, n in counts.most_common()]
        critique = "What went wrong:\n" + "\n".join(lines or ["- nothing on my list"])
        if not weights:
            return critique, self.paraphrase(parent)

        def write(rng: random.Random) -> list[str]:
            left = dict(weights)
            chosen = list[Mode]()
            for _ in range(min(rng.choice((1, 2, 2, 3)), len(left))):
                chosen.append(rng.choices(list(left), list(left.values()))[0])
                del left[chosen[-1]]
            return _remedied(sentences_of(parent), chosen, rng)

        return critique, write

    def write_hint(
        self, current: str, failed: Sequence[Example], rng: random.Random
    ) -> tuple[str, str]:
        """Return a critique and a hint with a sentence about one thing that the failed examples show.

        The current hint's sentences about other things may stay beside it.
        """
        counts = Counter(mode for example in failed for mode in sorted(failure_modes(example)))
        if not counts:
            raise LLMError("the rules found no failed example to reflect on")
        mode = rng.choices(list(counts), list(counts.values()))[0]
        return f"It fails at: {mode}.", with_advice(current, REMEDIES[mode], rng)

    def paraphrase(self, parent: str) -> Writer:
        """Return a function that rewords and reorders the parent's sentences without adding a remedy."""

        def write(rng: random.Random) -> list[str]:
            written: list[str] = []
            for sentence in sentences_of(parent):
                rewordings = REWORDINGS.get(frozenset(_TAG.findall(sentence)), ())
                if is_style(sentence):
                    rewordings = (*STYLE, "")
                reword = sentence not in _MODE_OF and rewordings and rng.random() < 0.5
                written.append(rng.choice(rewordings) if reword else sentence)
            for _ in range(rng.choice((0, 1, 1, 2))):
                written.append(rng.choice(STYLE))
            written = list(dict.fromkeys(s for s in written if s))
            if rng.random() < 0.7:
                rng.shuffle(written)
            for sentence in sentences_of(parent):
                if not _tags([sentence]) <= _tags(written):
                    written.append(sentence)
            return _bounded(written, rng)

        return write


RULES = GeoRules()


def _remedied(sentences: Sequence[str], modes: Sequence[Mode], rng: random.Random) -> list[str]:
    """Add one remedy for each mode; it replaces an old remedy of the same mode."""
    written = list(sentences)
    for mode in modes:
        old = [s for s in written if _MODE_OF.get(s) is mode]
        fresh = rng.choice([s for s in REMEDIES[mode] if s not in old])
        if old:
            written[written.index(old[0])] = fresh
        else:
            written.insert(rng.randrange(len(written) + 1), fresh)
    styles = [s for s in written if is_style(s)]
    if styles and rng.random() < 0.25:
        written = _without(written, rng.choice(styles))
    return _bounded(written, rng, keep=modes)


def _tags(sentences: Sequence[str]) -> set[str]:
    return set(_WHOLE_TAG.findall(" ".join(sentences)))


def _without(sentences: Sequence[str], dropped: str) -> list[str]:
    """Drop a sentence unless a tag would be lost with it."""
    others = [s for s in sentences if s != dropped]
    return others if _tags([dropped]) <= _tags(others) else list(sentences)


def _bounded(sentences: list[str], rng: random.Random, keep: Collection[Mode] = ()) -> list[str]:
    """Drop sentences down to MAX_SENTENCES, if tags allow it: style first, then other sentences."""
    styles = [s for s in sentences if is_style(s)]
    others = [s for s in sentences if s not in styles and _MODE_OF.get(s) not in keep]
    for sentence in (*rng.sample(styles, len(styles)), *rng.sample(others, len(others))):
        if len(sentences) > MAX_SENTENCES:
            sentences = _without(sentences, sentence)
    return sentences
