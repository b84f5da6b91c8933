"""An offline stand-in for the proposing LLM: rules that read the proposers' prompts.

`RulesLLM` is for the bundled worlds and for tests. It is not a language model. It reads the prompt
text that a model would get (INSPO's `<ins_0>`, `<example>` and `<history>`, GEPA's examples),
recognises failure modes from a fixed list, and joins sentences from fixed lists into instructions or
hints in the expected reply format. It knows nothing but its worlds, so a result obtained with it
shows how the training loop behaves, not how well an LLM reflects. A subclass may know other worlds.

No sentence of theirs is one of the bundled policies' training sentences, though every word is: the
policies have to generalise to them, as a real model would. A test keeps the sets apart.
"""

import random
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from cotune.errors import LLMError
from cotune.methods.inspo.proposers import KEEP
from cotune.methods.instruction_evolution import ABOUT_AN_AGENT
from cotune.types import Completion
from cotune.worlds import ladder_rules
from cotune.worlds.remedies import Rules, Writer, read_sentences, sentences_of


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


_SENTENCES = read_sentences("geo")
REMEDIES = {Mode(mode): tuple(texts) for mode, texts in _SENTENCES["remedies"].items()}
STYLE: tuple[str, ...] = tuple(_SENTENCES["style"])
"""Sentences that ask for nothing specific."""
CAUTION: tuple[str, ...] = tuple(_SENTENCES["caution"])
"""Sentences that ask for nothing, at the end of some hints."""
REWORDINGS = {frozenset((tag,)): tuple(texts) for tag, texts in _SENTENCES["rewordings"].items()}
"""By the tags that a sentence names: rewordings that ask for no more than the original."""

_MARK = "I provided an assistant with the following instructions"
_EXAMPLE = re.compile(
    r"^# Example \d+\n## Inputs\n(.*?)\n## Generated Outputs\n(.*?)\n## Feedback\n(.*?)(?=^# Example|\Z|\n```)",
    re.DOTALL | re.MULTILINE,
)
_ENDED = re.compile(r"The response was ended by: ([^.]*)\.")

MAX_SENTENCES = 12
_ALL_REMEDIES = {sentence: mode for mode, options in REMEDIES.items() for sentence in options}
_TAG = re.compile(r"</?(\w+)>")
_KEEP_LINE = re.compile(rf"^{re.escape(KEEP)} .*\n", re.MULTILINE)
_WORD = re.compile(r"\w+")
_ERROR_OBSERVATION = re.compile(r"My previous action is invalid:.*?Let me try again\.", re.DOTALL)
_FAILED_SEARCH = "The search failed"
_EFFECTIVE = re.compile(
    r"\b(search\w*|query|look|hops?|steps?|plan|reason|think|evidence|results?|documents?|facts?"
    r"|memory|guess|verify|check|once|one)\b",
    re.IGNORECASE,
)
_HARMFUL = re.compile(
    r"^(search|query|look up|copy) the (whole |entire |full )?question"
    r"|one search is enough|(only one|a single|at most one) search\b(?! (for|per))"
    r"|^(answer from|trust|use) (your )?memory|^guess\b|know the answer already"
    r"|^do not (look at|trust|use) the (documents|results|evidence)",
    re.IGNORECASE,
)
_LINK = re.compile(r"\b(of|where|who|whose|which|that)\b", re.IGNORECASE)


_FAILURE = re.compile(
    r"Question:(?P<question>.*?)\nResponse:(?P<response>.*?)(\nCorrect answer:(?P<answers>[^\n]*))?"
    r"(\nFeedback:.*)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout, as a reflection prompt shows it: INSPO's with accepted answers, GEPA's with feedback."""

    question: str
    response: str
    answers: tuple[str, ...] = ("",)
    feedback: str = ""


def read_examples(prompt: str) -> list[Example]:
    """Return the `<example>` blocks of a prompt."""
    blocks = re.findall(r"<example>\s*(Question:.*?)\n</example>", prompt, re.DOTALL)
    found = [_FAILURE.fullmatch(block) for block in blocks]
    return [
        Example(
            match["question"].strip(),
            match["response"].strip(),
            tuple(a.strip() for a in (match["answers"] or "").split("|")),
        )
        for match in found
        if match
    ]


def failure_modes(example: Example) -> set[Mode]:
    """Return the failure modes that an example shows."""
    own = _ERROR_OBSERVATION.sub("", example.response)
    evidence = " ".join(re.findall(r"<information>(.*?)</information>", own, re.DOTALL))
    acts = re.sub(r"<information>.*?</information>", "", own, flags=re.DOTALL)
    queries: list[str] = re.findall(r"<search>(.*?)</search>", acts, re.DOTALL)
    answers: list[str] = re.findall(r"<answer>(.*?)</answer>", acts, re.DOTALL)
    first_act = re.search(r"<(?:search|answer)>", acts)
    reasoned = "<think>" in acts[: first_act.start() if first_act else len(acts)]
    stopped_late = (
        re.search(r"\[stopped: (turn|turn token|token|context) limit\]", acts) is not None
    )
    asked = _words(example.question)
    several_hops = len(_LINK.findall(example.question)) >= 2
    shows = {
        Mode.WHOLE_QUESTION: any(4 * len(_words(q) & asked) > 3 * len(asked) for q in queries),
        Mode.ONE_SEARCH: several_hops and len(queries) == 1,
        Mode.NEVER_SEARCHED: not queries,
        Mode.NO_REASONING: not reasoned,
        Mode.NO_ANSWER_TAG: not answers and not stopped_late,
        Mode.MALFORMED: own != example.response or _FAILED_SEARCH in evidence,
        Mode.OUT_OF_TURNS: not answers and stopped_late,
    }
    if answers:
        given = answers[-1].strip()
        shows[Mode.NOT_IN_EVIDENCE] = bool(queries) and given.casefold() not in evidence.casefold()
        longest = max(len(_WORD.findall(a)) for a in example.answers)
        shows[Mode.TOO_LONG] = len(_WORD.findall(given)) > 2 * longest + 3
    return {mode for mode, seen in shows.items() if seen}


def _words(text: str) -> set[str]:
    return {w.casefold() for w in _WORD.findall(text)} - {"what", "is", "the", "a", "an", "of"}


def split_sentences(text: str) -> list[str]:
    return [s.strip() for s in sentences_of(text) if s.strip()]


def is_harmful(sentence: str) -> bool:
    """Return whether a sentence asks for broad searches or for answers from memory."""
    return _HARMFUL.search(sentence) is not None


def is_style(sentence: str) -> bool:
    """Return whether a sentence names no tag and asks for nothing specific."""
    named = _TAG.search(sentence) or _EFFECTIVE.search(sentence) or sentence in _ALL_REMEDIES
    return not named


def is_gepa_prompt(prompt: str) -> bool:
    """Return whether a prompt is GEPA's (`gepa.strategies.instruction_proposal`)."""
    return prompt.startswith(_MARK)


def is_instruction_prompt(prompt: str) -> bool:
    """Return whether a prompt is GEPA's for an agent's instruction (`instruction_reflection`)."""
    return is_gepa_prompt(prompt) and ABOUT_AN_AGENT in prompt


def read_shown(prompt: str) -> list[Example]:
    """Return the examples of one of GEPA's prompts."""
    found = [[part.strip() for part in match] for match in _EXAMPLE.findall(prompt)]
    return [Example(question, response, feedback=said) for question, response, said in found]


def read_failed(prompt: str) -> list[Example]:
    """Return the failed examples of one of GEPA's prompts."""
    return [shown for shown in read_shown(prompt) if not shown.feedback.startswith("Correct")]


def current_text(prompt: str) -> str:
    """Return the hint or instruction that the examples were sampled under; "" for an empty seed."""
    match = re.search(r"```\n(.*?)\n```", prompt, re.DOTALL)
    if match is None:
        raise LLMError("the rules found no current instruction in the reflection prompt")
    return match[1].strip()


def write_hint(prompt: str, rng: random.Random) -> str:
    """Write a hint for `geo` in GEPA's reply format.

    It has one sentence about one thing that the failed examples show, alone or with the current
    hint's sentences about other things.

    Raises:
        LLMError: the prompt shows no example that failed.
    """
    failed = read_failed(prompt)
    counts = Counter(mode for example in failed for mode in sorted(failure_modes(example)))
    if not counts:
        raise LLMError("the rules found no failed example of a bundled world to reflect on")
    mode = rng.choices(list(counts), list(counts.values()))[0]
    hint = with_advice(current_text(prompt), REMEDIES[mode], rng)
    return f"It fails at: {mode}.\n\n```\n{hint}\n```"


def with_advice(current: str, advice: Sequence[str], rng: random.Random) -> str:
    """Return a hint with one of the sentences of advice, and at times the current hint's others."""
    now = sentences_of(current)
    kept = [s for s in now if s not in advice] if rng.random() < 0.4 else []
    fresh = rng.choice([s for s in advice if s not in now])
    written = [*kept, fresh, *([rng.choice(CAUTION)] if rng.random() < 0.15 else [])]
    return " ".join(dict.fromkeys(written))


def failures_of_agent(prompt: str) -> list[Example]:
    """Return the failed examples of a prompt for an agent's instruction, in the form of INSPO's."""
    return [
        replace(
            shown,
            response="".join(
                (shown.response, *(f"\n[stopped: {how}]" for how in _ENDED.findall(shown.feedback)))
            ),
        )
        for shown in read_failed(prompt)
    ]


class RulesLLM:
    """Write instructions and hints by rule; deterministic for a seed and a prompt.

    Args:
        seed: seed of the draws.
    """

    advice = "set llm to a model, or to a file of texts"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def rules_for_question(self, question: str) -> Rules | None:
        """Return the rules of the world that a question belongs to; None for `geo`."""
        return ladder_rules.RULES if ladder_rules.knows(question) else None

    def rules_for_instructions(self, instructions: Sequence[str]) -> Rules | None:
        """Return the rules of the world that instructions belong to, best first; None for `geo`."""
        return ladder_rules.RULES if "\\boxed" in instructions[0] else None

    def complete(self, prompt: str) -> Completion:
        """Reply to a prompt of INSPO's proposers, or to GEPA's for a hint or an instruction.

        Raises:
            LLMError: any other prompt, or one that shows nothing to reflect on.
        """
        # The rules keep their parent's text, so the line on required texts changes nothing.
        rng = random.Random(f"rules/{self.seed}/{_KEEP_LINE.sub('', prompt)}")
        if not is_gepa_prompt(prompt):
            return self._propose(prompt, rng)
        if not is_instruction_prompt(prompt):
            return Completion(self._hint(prompt, rng))
        failures = failures_of_agent(prompt)
        if not failures:
            raise LLMError("the rules found no failed example to reflect on")
        critique, write = self.reflect(current_text(prompt), failures)
        return Completion(f"{critique}\n\n```\n{' '.join(write(rng))}\n```")

    def _hint(self, prompt: str, rng: random.Random) -> str:
        failed = [(e.question, e.response) for e in read_failed(prompt)]
        rules = self.rules_for_question(failed[0][0]) if failed else None
        if rules is None:
            return write_hint(prompt, rng)
        return f"```\n{rules.write_hint(current_text(prompt), failed, rng)}\n```"

    def _propose(self, prompt: str, rng: random.Random) -> Completion:
        """Reply to a prompt of `methods.inspo.proposers`."""
        asked = re.search(r"\b[Gg]ive (\d+) different", prompt)
        parent = re.search(r"<ins_0>\s*(.*?)\s*</ins_0>", prompt, re.DOTALL)
        if asked is None or parent is None:
            raise LLMError("RulesLLM reads the proposers' prompts only; configure `llm` for others")
        if examples := read_examples(prompt):
            critique, write = self.reflect(parent[1], examples)
        elif rules := self.rules_for_instructions([parent[1]]):
            critique, write = "", rules.paraphrase(parent[1])
        else:
            critique, write = "", partial(_paraphrase, parent[1])
        candidates = [" ".join(write(rng)) for _ in range(int(asked[1]))]
        body = "\n\n".join(f"<ins_{i}>\n{c}\n</ins_{i}>" for i, c in enumerate(candidates, 1))
        return Completion(f"{critique}\n\n{body}".strip())

    def reflect(self, parent: str, examples: Sequence[Example]) -> tuple[str, Writer]:
        """Return a critique, and a function that writes a candidate with remedies of 1 to 3 modes."""
        if rules := self.rules_for_question(examples[0].question):
            return rules.reflect(parent, [(e.question, e.response) for e in examples])
        counts = Counter(mode for e in examples for mode in sorted(failure_modes(e)))
        weights = {mode: n * n for mode, n in counts.most_common()}
        lines = [f"- {mode} ({n} of {len(examples)})" for mode, n in counts.most_common()]
        critique = "What went wrong:\n" + "\n".join(lines or ["- nothing on my list"])
        sentences = split_sentences(parent)

        def write(rng: random.Random) -> list[str]:
            if not weights:
                return _paraphrase(parent, rng)
            left, chosen = dict(weights), list[Mode]()
            for _ in range(min(rng.choice((1, 2, 2, 3)), len(left))):
                chosen.append(rng.choices(list(left), list(left.values()))[0])
                del left[chosen[-1]]
            return _remedied(sentences, chosen, rng)

        return critique, write


def _remedied(sentences: Sequence[str], modes: Sequence[Mode], rng: random.Random) -> list[str]:
    """Add one remedy for each mode; it replaces an old remedy of the same mode."""
    written = list(sentences)
    for mode in modes:
        known = [s for s in written if _ALL_REMEDIES.get(s) is mode]
        fresh = rng.choice([s for s in REMEDIES[mode] if s not in known])
        if known:
            written[written.index(known[0])] = fresh
        else:
            written.insert(rng.randrange(len(written) + 1), fresh)
    harmful = [s for s in written if is_harmful(s)]
    styles = [s for s in written if is_style(s)]
    if harmful and rng.random() < 0.7:
        written = _without(written, rng.choice(harmful))
    elif styles and rng.random() < 0.25:
        written = _without(written, rng.choice(styles))
    return _bounded(written, rng, keep=modes)


def _paraphrase(parent: str, rng: random.Random) -> list[str]:
    """Reword and reorder the parent's sentences without adding a remedy."""
    written: list[str] = []
    for sentence in split_sentences(parent):
        options = REWORDINGS.get(frozenset(_TAG.findall(sentence)), ())
        if is_style(sentence):
            options = (*STYLE, "")
        reword = sentence not in _ALL_REMEDIES and options and rng.random() < 0.5
        written.append(rng.choice(options) if reword else sentence)
    for _ in range(rng.choice((0, 1, 1, 2))):
        written.append(rng.choice(STYLE))
    written = list(dict.fromkeys(s for s in written if s))
    if rng.random() < 0.7:
        rng.shuffle(written)
    return _bounded(_complete(written, parent), rng)


def _complete(sentences: list[str], parent: str) -> list[str]:
    """Put back the parent's sentence for every tag that was lost."""
    for sentence in split_sentences(parent):
        present = set(re.findall(r"</?\w+>", " ".join(sentences)))
        if not set(re.findall(r"</?\w+>", sentence)) <= present:
            sentences.append(sentence)
    return sentences


def _without(sentences: Sequence[str], dropped: str) -> list[str]:
    """Drop a sentence unless a tag would be lost with it."""
    rest = [s for s in sentences if s != dropped]
    tags = set(re.findall(r"</?\w+>", dropped))
    return rest if tags <= set(re.findall(r"</?\w+>", " ".join(rest))) else list(sentences)


def _bounded(sentences: list[str], rng: random.Random, keep: Collection[Mode] = ()) -> list[str]:
    """Drop sentences down to MAX_SENTENCES, if tags allow it: style first, then other sentences."""
    styles = [s for s in sentences if is_style(s)]
    others = [s for s in sentences if s not in styles and _ALL_REMEDIES.get(s) not in keep]
    for sentence in (*rng.sample(styles, len(styles)), *rng.sample(others, len(others))):
        if len(sentences) > MAX_SENTENCES:
            sentences = _without(sentences, sentence)
    return sentences
