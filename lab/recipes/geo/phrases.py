"""The instruction sentences that the bundled policy is trained to react to.

Every pattern stands for all the sentences that its `{a|b}` alternatives give. None of them is a
sentence that the offline LLM can write (`cotune_lab.worlds.geo_rules`), though the two share their words: the
policy has to generalise to the instructions of a run, as a real model has to. A test checks
that the two sets do not overlap.
"""

import itertools
import random
import re
from collections import Counter
from enum import StrEnum


class Kind(StrEnum):
    """The effect of a sentence on the demonstrated behaviour (`demonstrations.rates`)."""

    DECOMPOSE = "decompose"
    PLAN = "plan"
    EVIDENCE = "evidence"
    ANSWER_TAG = "answer tag"
    SEARCH_TAG = "search tag"
    NEUTRAL = "neutral"
    BROAD = "broad"
    MEMORY = "memory"


# The initial instruction of the world, sentence by sentence, in the spirit of Search-R1's.
INITIAL: tuple[tuple[Kind, str], ...] = (
    (Kind.NEUTRAL, "Answer the given question."),
    (Kind.NEUTRAL, "You may think inside <think> and </think>."),
    (Kind.SEARCH_TAG, "You can call a search engine by <search> query </search>."),
    (Kind.SEARCH_TAG, "It returns the top results between <information> and </information>."),
    (Kind.NEUTRAL, "You can search as many times as you want."),
    (
        Kind.ANSWER_TAG,
        "Give the answer inside <answer> and </answer>, for example <answer> Beijing </answer>.",
    ),
)

_THINK = "inside <think> and </think>"
PATTERNS: dict[Kind, tuple[str, ...]] = {
    Kind.DECOMPOSE: (
        "{Search for|Look up|Find} {one|a single} {entity|name|place} at a time.",
        "{Search|Look up|Query} each {entity|name|place} {individually|separately|on its own}.",
        "Never {search|query|look up} the {entire|whole|full} question.",
        "Do not {search|query|look up} the {entire|whole} question {at once|in one search}.",
        "Break the question into {single hops|small steps|parts} and search each {hop|step|part}.",
        "Search step by step, one {name|entity|place} {per|for each} search.",
        "Use {one|a separate} search for {each|every} {hop|step|entity|name}.",
        "Each {query|search} {must|should} {hold|contain} {one name|a single name|one entity} only.",
        "Search only {one name|one entity|a single place}, then use the result for the next {search|hop|step}.",
        "Split the question into {hops|steps|single facts} and {search|look up} them one by one.",
    ),
    Kind.PLAN: (
        f"First {{write|make}} a plan {_THINK}.",
        f"{{Reason|Think}} {_THINK} before {{every|each}} search.",
        f"List the {{facts|steps|names}} you need {_THINK}.",
        f"{{Plan|List}} {{every|each}} {{hop|step}} {_THINK} {{first|before you search}}.",
        f"{{After|Before}} {{each|every}} search, {{reason|think}} {_THINK}.",
        f"You must {{plan|reason}} {_THINK} {{first|every time}}.",
        f"Write down what you need to find {_THINK}.",
    ),
    Kind.EVIDENCE: (
        "Use only {evidence|facts} from the {search results|documents|results}.",
        "{Quote|Take|Copy} the answer from the {documents|results|evidence}.",
        "Do not answer from memory, {verify it in|look at} the {results|documents}.",
        "{Check|Verify} the answer {in|against} the {documents|results|evidence}.",
        "The answer must {stand|be} in the {documents|results|evidence}.",
        "Never guess, use the {documents|evidence|results}.",
        "{Trust|Use} the {documents|evidence|results}, not your memory.",
    ),
    Kind.ANSWER_TAG: (
        "{Give|Put|Write} the {final answer|answer} {inside|between} <answer> and </answer>.",
        "Finish with <answer> and </answer>.",
        "{Put|Write} only the answer {inside|between} <answer> and </answer>.",
        "The {final answer|answer} {goes|belongs} {inside|between} <answer> and </answer>, "
        "for example <answer> Beijing </answer>.",
    ),
    Kind.SEARCH_TAG: (
        "You can search {with|by} <search> query </search>.",
        "{Call|Use} the search engine {by|with} <search> query </search>.",
        "{Results|Documents|Search results} {appear|are returned} between <information> and </information>.",
        "To search, write <search> query </search> and read the results between <information> and </information>.",
    ),
    Kind.NEUTRAL: (
        "Answer the question.",
        "You are a helpful assistant.",
        "Be {concise|polite|brief|kind|precise|clear}.",
        "{Act as|You are} a careful {researcher|expert|assistant}.",
        "Respond {politely|in English|clearly}.",
        "Take your time.",
        "You can {search|think} as {often|many times} as you {want|need}.",
        "The question is about {cities|places|geography} and {countries|facts}.",
        "{This|It} is {important|a test}.",
        "Read the question {carefully|with care}.",
    ),
    Kind.BROAD: (
        "{Search|Query|Look up} the {whole|entire|full} question {at once|as it is|in one search}.",
        "Copy the question into the search.",
        "One search is enough.",
        "Use {only one|a single|at most one} search.",
    ),
    Kind.MEMORY: (
        "{Answer from|Trust|Use} your memory.",
        "{Guess|Answer from memory} {if|when} you are not sure.",
        "You know the answer already.",
        "Do not {look at|trust} the {documents|results}.",
    ),
}


def expand(pattern: str) -> list[str]:
    """Return every sentence a pattern stands for.

    >>> expand("{One|Two} {a|b}.")
    ['One a.', 'One b.', 'Two a.', 'Two b.']
    """
    pieces = re.split(r"\{([^}]*)\}", pattern)
    options = [p.split("|") if i % 2 else [p] for i, p in enumerate(pieces)]
    return ["".join(choice) for choice in itertools.product(*options)]


SENTENCES: dict[Kind, tuple[tuple[str, ...], ...]] = {
    kind: tuple(tuple(expand(p)) for p in patterns) for kind, patterns in PATTERNS.items()
}
"""By kind, then by pattern: sampling a pattern first keeps long grammars from crowding others."""

# Probabilities of 0, 1, 2 and 3 sentences of a kind in a training instruction.
_COUNTS: dict[Kind, tuple[float, ...]] = {
    Kind.DECOMPOSE: (0.50, 0.28, 0.16, 0.06),
    Kind.PLAN: (0.50, 0.38, 0.12),
    Kind.EVIDENCE: (0.50, 0.35, 0.15),
    Kind.ANSWER_TAG: (0.10, 0.75, 0.15),
    Kind.SEARCH_TAG: (0.10, 0.50, 0.40),
    Kind.NEUTRAL: (0.15, 0.35, 0.30, 0.20),
    Kind.BROAD: (0.88, 0.12),
    Kind.MEMORY: (0.88, 0.12),
}


def all_sentences() -> set[str]:
    """Return every sentence of the recipe, the initial instruction's included."""
    written = {s for patterns in SENTENCES.values() for options in patterns for s in options}
    return written | {sentence for _kind, sentence in INITIAL}


def sample_instruction(rng: random.Random) -> tuple[str, Counter[Kind]]:
    """Draw a training instruction, and count its sentences of each kind.

    Half of them start from the initial instruction with sentences of the effective kinds mixed
    in, as an optimizer's edits would; the others are composed freely. Any order.
    """
    parts = list(INITIAL) if rng.random() < 0.5 else []
    for kind, shares in _COUNTS.items():
        if parts and kind in (Kind.ANSWER_TAG, Kind.SEARCH_TAG):
            continue
        for _ in range(rng.choices(range(len(shares)), shares)[0]):
            parts.append((kind, rng.choice(rng.choice(SENTENCES[kind]))))
    parts = [part for part in dict.fromkeys(parts) if part[0] != Kind.NEUTRAL or rng.random() < 0.9]
    if rng.random() < 0.7:
        rng.shuffle(parts)
    return _laid_out(rng, [s for _, s in parts]), Counter(kind for kind, _ in parts)


def _laid_out(rng: random.Random, sentences: list[str]) -> str:
    """Lay sentences out: mostly one paragraph, sometimes one per line, or two paragraphs."""
    layout = rng.random()
    if layout < 0.8:
        return " ".join(sentences)
    if layout < 0.9:
        return "\n".join(sentences)
    cut = rng.randrange(len(sentences) + 1)
    paragraphs = (" ".join(sentences[:cut]), " ".join(sentences[cut:]))
    return "\n\n".join(p for p in paragraphs if p)
