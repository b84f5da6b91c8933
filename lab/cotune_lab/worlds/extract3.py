"""The task `extract3`: a passage on three people with three attributes each, and a question about one.

A reply is right if it names the value that is asked for, no other value of its kind and no other person, in
at most ten words. So a list of all values, or the passage itself, is wrong.
"""

import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, Literal

from cotune import TaskEnvironment, Trajectory
from cotune.environments.registry import EnvironmentKind
from cotune_lab.worlds.content_splits import Drawn, Sizes, drawn_tasks, split_of

INITIAL_INSTRUCTION = "Read the text and answer the question."
BANK = Path(__file__).with_name("extract3.txt")
MAX_WORDS = 10

# fmt: off
NAMES = (
    "Adele", "Agnes", "Albin", "Alma", "Anton", "Arthur", "Astrid", "Aurel", "Bela", "Berta", "Bjorn", "Boris",
    "Bruno", "Carla", "Casimir", "Celia", "Clara", "Cora", "Dario", "Doris", "Edgar", "Edith", "Elias", "Elsa",
    "Emil", "Erik", "Esther", "Fabio", "Felix", "Fiona", "Flora", "Frida", "Gerda", "Gilbert", "Greta", "Gustav",
    "Hanna", "Hector", "Hedda", "Helga", "Henrik", "Hilda", "Hugo", "Igor", "Ines", "Ingrid", "Irma", "Isaac",
    "Ivan", "Jakob", "Jasper", "Jonas", "Julia", "Karin", "Kaspar", "Klara", "Konrad", "Laura", "Leon", "Lina",
    "Linus", "Lotte", "Ludwig", "Luisa", "Magda", "Marcel", "Margot", "Martha", "Matilda", "Maurice", "Mira",
    "Moritz", "Nadia", "Nils", "Nina", "Nora", "Olaf", "Oskar", "Otto", "Paula", "Pedro", "Petra", "Philip",
    "Rafael", "Ramona", "Rita", "Robert", "Rosa", "Rudolf", "Samuel", "Selma", "Sigrid", "Silvia", "Simon",
    "Stella", "Sven", "Tamara", "Tessa", "Theo", "Thomas", "Tilda", "Ulrich", "Vera", "Victor", "Viola", "Walter",
    "Wanda", "Xaver", "Yvonne", "Zoltan",
)
VALUES: Mapping[str, tuple[str, ...]] = {
    "city": (
        "Bergen", "Bilbao", "Cairo", "Denver", "Dublin", "Geneva", "Hanoi", "Havana", "Krakow", "Lagos", "Leeds",
        "Lima", "Lisbon", "Madrid", "Munich", "Nairobi", "Oslo", "Porto", "Prague", "Quito", "Seville", "Tunis",
        "Turin", "Vienna", "Warsaw", "Zagreb",
    ),
    "job": (
        "baker", "barber", "butcher", "carpenter", "chemist", "dentist", "driver", "farmer", "florist", "gardener",
        "judge", "lawyer", "nurse", "pilot", "plumber", "sailor", "surgeon", "tailor", "teacher", "waiter",
    ),
    "pet": (
        "budgie", "canary", "cat", "dog", "ferret", "gecko", "goat", "goldfish", "hamster", "horse", "lizard",
        "mouse", "parrot", "pigeon", "pony", "rabbit", "snake", "spider", "tortoise", "turtle",
    ),
    "hobby": (
        "archery", "ballet", "boxing", "chess", "cycling", "fencing", "fishing", "golf", "hiking", "judo", "karate",
        "knitting", "photography", "pottery", "rowing", "sailing", "sewing", "skating", "surfing", "tennis", "yoga",
    ),
    "hat": ("black", "blue", "brown", "green", "grey", "pink", "purple", "red", "white", "yellow"),
}
# fmt: on
CLAUSES: Mapping[str, tuple[str, ...]] = {
    "city": ("lives in {v}", "has a home in {v}", "has lived in {v} for years"),
    "job": ("works as a {v}", "earns a living as a {v}", "has a job as a {v}"),
    "pet": ("has a {v}", "keeps a {v}", "owns a {v}"),
    "hobby": ("enjoys {v}", "loves {v}", "spends the weekends on {v}"),
    "hat": ("wears a {v} hat", "bought a {v} hat", "has a {v} hat"),
}
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "city": ("Where does {n} live?", "In which city does {n} live?", "What is {n}'s home city?"),
    "job": ("What is {n}'s job?", "What does {n} work as?", "Which job does {n} have?"),
    "pet": ("Which pet does {n} have?", "What animal does {n} keep?", "What is {n}'s pet?"),
    "hobby": ("What is {n}'s hobby?", "What does {n} enjoy?", "Which hobby does {n} have?"),
    "hat": (
        "What colour is {n}'s hat?",
        "Which colour does {n}'s hat have?",
        "What is the colour of {n}'s hat?",
    ),
    "who": ("Who {c}?", "Which of the three {c}?", "What is the name of the one who {c}?"),
}
STRATA = tuple(QUESTIONS)
_WORD = re.compile(r"[^\W_]+")


def reward(reply: str, right: str, wrong: Collection[str]) -> float:
    """Return 1.0 if a reply of at most ten words names the right value and no wrong one, else 0.0.

    Names are compared as whole words, in any case.

    >>> reward("In Porto.", "Porto", {"Lima"}), reward("Porto or Lima", "Porto", {"Lima"})
    (1.0, 0.0)
    """
    words = all_words(reply)
    named = right.casefold() in words and not set(words) & {value.casefold() for value in wrong}
    return float(named and len(words) <= MAX_WORDS)


def all_words(reply: str) -> list[str]:
    """Return the words of a reply in lower case; an apostrophe or a hyphen separates two."""
    return _WORD.findall(reply.casefold())


def candidates(question: str) -> frozenset[str]:
    """Return all values of the kind that a question asks for, in lower case."""
    kind = type_of(question)
    values = NAMES if kind == "who" else VALUES[kind] if kind else ()
    return frozenset(value.casefold() for value in values)


def distractors(question: str, right: str) -> frozenset[str]:
    """Return what a reply must not name: other values of the kind that is asked for, other people.

    Raises:
        ValueError: the question is not one of this task's.
    """
    kind, name = _parsed(question)
    if kind is None:
        raise ValueError(f"{question!r} is not a question of extract3")
    return frozenset((*NAMES, *VALUES.get(kind, ()))) - {right, name}


def type_of(question: str) -> str | None:
    """Return the stratum of a question of this task; None for any other text."""
    return _parsed(question)[0]


@cache
def _forms() -> Mapping[str, Sequence[re.Pattern[str]]]:
    """Return the patterns of questions by stratum; compiling them takes longer than most imports."""
    clauses = "|".join(
        re.escape(clause).replace(r"\{v\}", "(?:" + "|".join(VALUES[kind]) + ")")
        for kind, clauses in CLAUSES.items()
        for clause in clauses
    )
    return {
        kind: [
            re.compile(
                re.escape(wording)
                .replace(r"\{n\}", f"(?P<name>{'|'.join(NAMES)})")
                .replace(r"\{c\}", f"(?:{clauses})")
            )
            for wording in wordings
        ]
        for kind, wordings in QUESTIONS.items()
    }


def _parsed(question: str) -> tuple[str | None, str]:
    """Return the stratum and the name that the question's last line gives; (None, "") for others."""
    last = question.rstrip().rpartition("\n")[2]
    for kind, forms in _forms().items():
        for form in forms:
            if match := form.fullmatch(last):
                return kind, match.groupdict().get("name") or ""
    return None, ""


class Extract3Environment(TaskEnvironment):
    """Questions whose people are in one split only; the reward is 1 for the right value and nothing else.

    Raises:
        ConfigError: a split asks for more questions than there are.
    """

    measure: ClassVar[str] = "exact match"

    def __init__(self, sizes: Sizes | None = None) -> None:
        tasks = drawn_tasks("extract3", sizes or Sizes(), STRATA, _draw)
        super().__init__(tasks, INITIAL_INSTRUCTION)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the policy's own text, and that text."""
        task, reply = trajectory.task, trajectory.own_text.strip()
        right = task.answers[0]
        return reward(reply, right, distractors(task.question, right)), reply or None


@dataclass(frozen=True, kw_only=True)
class Extract3Options(Sizes):
    """The questions of the world that a run uses."""

    kind: Literal["extract3"] = "extract3"


environment = EnvironmentKind(
    options=Extract3Options,
    build=lambda options, tasks: Extract3Environment(options),
)


def names_of(split: str) -> list[str]:
    """Return the names that only questions of one split hold."""
    return [name for name in NAMES if split_of(f"extract3 {name}") == split]


def _draw(rng: random.Random, kind: str, split: str) -> Drawn:
    """Draw a passage on three people of a split, and a question of a kind."""
    people = rng.sample(names_of(split), 3)
    kinds = rng.sample(tuple(VALUES), 3)
    if kind != "who" and kind not in kinds:
        kinds[rng.randrange(3)] = kind
    held = {k: rng.sample(VALUES[k], 3) for k in kinds}
    index = rng.randrange(3)
    subject = rng.choice(kinds) if kind == "who" else kind
    clauses = {(i, k): rng.choice(CLAUSES[k]).format(v=held[k][i]) for i in range(3) for k in kinds}
    if rng.random() < 0.5:
        sentences = [_about(rng, people[i], [clauses[i, k] for k in kinds]) for i in range(3)]
    else:
        sentences = [_of_kind(rng, people, [clauses[i, k] for i in range(3)]) for k in kinds]
    right = people[index] if kind == "who" else held[subject][index]
    wording = rng.choice(QUESTIONS[kind])
    question = wording.format(n=people[index], c=clauses[index, subject])
    return f"{' '.join(sentences)}\n\n{question}", right


def _about(rng: random.Random, name: str, clauses: list[str]) -> str:
    """Return a sentence or two about one person."""
    a, b, c = rng.sample(clauses, 3)
    if rng.random() < 0.5:
        return f"{name} {a}, {b} and {c}."
    return f"{name} {a} and {b}. {name} also {c}."


def _of_kind(rng: random.Random, people: list[str], clauses: list[str]) -> str:
    """Return a sentence about one attribute of all three."""
    first, second, third = rng.sample([f"{n} {c}" for n, c in zip(people, clauses, strict=True)], 3)
    if rng.random() < 0.5:
        return f"{first}, {second} and {third}."
    return f"{first}, while {second}; {third}."
