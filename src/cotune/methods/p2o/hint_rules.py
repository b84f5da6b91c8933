"""The contract of a hint: an instruction's, plus nothing from a hard question's solution."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from cotune.methods.instruction_rules import InstructionRules
from cotune.methods.leaks import runs, words_of
from cotune.methods.method import Equal
from cotune.methods.text_evolution import PLACEHOLDERS
from cotune.types import Task

_THINK_TAG = re.compile(r"</?think>")
_NUMBER = re.compile(r"(?<![\w.])[0-9][0-9,]*(?:\.[0-9]+)?(?!\w)")
_NUMERIC_ANSWER = re.compile(r"[-+$\s]*[0-9][0-9,]*(?:\.[0-9]+)?[%\s]*")
_MIN_DIGITS = 3
_SHARED_WORDS = 5

# LaTeX around a number that does not change it: thin spaces and "{,}" between digits, degrees.
_DECORATION = re.compile(r"(?<=[0-9])(?:\\[,;:!]|\{,\}|~|[\u2009\u202f])(?=[0-9])")
_DEGREES = re.compile(r"(?<!\s)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree|°)")
# Commands, digits, operators and single letters, and blanks between them.
_FORMULA = re.compile(
    r"(?:\\[A-Za-z]+|[0-9.,^_(){}\[\]*/+=%$π√-]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
    r"|[ ](?=[\\0-9^_({*/+=√-])|(?<=[*/+=-])[ ](?=[A-Za-z](?![A-Za-z])))+"
)
_STATED = re.compile(
    r"\b(?:answer|result|solution)s?\b[^.:=\n]{0,24}?(?:\b(?:is|are|be|equals?)\b|[:=])"
    r"|\b(?:answer(?: with)?|choose|pick|select|conclude|is equal to)\b|\\boxed\s*(?=\{)|答案",
    re.IGNORECASE,
)
_BEFORE_ANSWER = re.compile(
    r"(?:[\s*`\"'“:=,是为為]|\b(?:always|exactly|just|simply|then|therefore|thus|the|option|choice"
    r"|number|value|letter)\b)*",
    re.IGNORECASE,
)
# "The answer is 1 minus …" and "answer in 2 words" state none.
_GOES_ON = re.compile(
    r"\s*(?:minus|plus|times|divided|multiplied|over|of|or|to|more|less|fewer|than"
    r"|(?:digit|decimal|place|word|sentence|line|step|time)s?)\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"[(\[]?([A-Za-z])[)\]]?\.?")
# A and I are also words: they are choices only at the end of a phrase.
_STATED_CHOICE = re.compile(
    r"[(\[](?P<bracketed>[A-Za-z])[)\]]|(?P<bare>[B-HJ-Z](?![\w'’(])|[AI](?!\s*[\w'’(]))"
)
# A fraction or decimal of three digits or fewer stands in many formulas: 1/2, 3/4, 0.5.
_QUOTIENT = re.compile(r"\\(?:[dt]?frac|sqrt)(?![A-Za-z])|[0-9)}]\s*/\s*[0-9({]|[0-9]\.[0-9]")
_ORDINARY = re.compile(r"1/[0-9]|[23]/[34]|\\[dt]?frac(?:\{1\}\{[0-9]\}|1[0-9])|0?\.(?:5|25|75|1)")
_MOST_FORMULAS = 64


def numbers_of(text: str) -> set[str]:
    """Return the numbers that are whole words, without sign, separators and redundant zeros.

    >>> sorted(numbers_of("1,234 and 0.50, not x7"))
    ['0.5', '1', '1234', '234']
    """
    found: set[str] = set()
    for match in _NUMBER.finditer(_bare(text)):
        # "100,200" is one number or two: both readings count.
        found |= {_plain(part) for part in (match.group(), *match.group().split(",")) if part}
    return found


def _bare(text: str) -> str:
    r"""Return a text without the LaTeX that decorates its numbers: 1\,000 is 1000, 144^\circ is 144."""
    return _DEGREES.sub("", _DECORATION.sub("", text))


def _plain(number: str) -> str:
    whole, _, fraction = number.replace(",", "").partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def leaked_number(candidate: str, known: str, tasks: Iterable[Task]) -> str | None:
    """Return the first answer of three or more digits that the candidate contains.

    Numbers of one or two digits are skipped, since hints contain them by chance, and so are those
    in `known`.
    """
    new = {n for n in numbers_of(candidate) - numbers_of(known) if _digits(n) >= _MIN_DIGITS}
    if not new:
        return None
    for task in tasks:
        for answer in task.answers:
            bare = _bare(answer)
            numeric = _NUMERIC_ANSWER.fullmatch(bare)
            if numeric and _plain(re.sub(r"[^0-9.]", "", bare)) in new:
                return answer
    return None


def _digits(number: str) -> int:
    return sum(character.isdigit() for character in number)


def stated_answer(
    candidate: str, known: str, tasks: Iterable[Task], equal: Equal | None = None
) -> str | None:
    r"""Return the first answer that the candidate states, as in "the answer is 42" or "choose (B)".

    Fractions, roots and decimals count anywhere, except for ordinary ones such as 1/2. What `known`
    contains in the same way does not count.

    Args:
        equal: compares mathematically, so that 3/8 is \frac{3}{8}; None compares texts.
    """
    answers = list(dict.fromkeys(a for task in tasks for a in task.answers if a.strip()))
    if not answers:
        return None
    letters, formulas = _claims(candidate)
    old_letters, old_formulas = _claims(known)
    for letter in letters:
        if letter not in old_letters:
            found = [answer for answer in answers if _letter_of(answer) == letter]
            if found:
                return found[0]
    for formula in formulas:
        if formula not in old_formulas:
            found = [answer for answer in answers if _bare(answer).strip("$ ") == formula]
            if not found and equal is not None and equal(formula, answers):
                found = [answer for answer in answers if equal(formula, [answer])]
            if found:
                return found[0]
    return None


def _letter_of(answer: str) -> str:
    """Return the letter of a choice such as "(b)"; "" for other answers."""
    match = _CHOICE.fullmatch(answer.strip("$ "))
    return match[1].upper() if match else ""


def _claims(text: str) -> tuple[list[str], list[str]]:
    """Return what a text states as an answer: letters of choices, and formulas.

    The formulas include its fractions, roots and decimals wherever they stand; at most
    `_MOST_FORMULAS`.
    """
    bare = _bare(text)
    letters, formulas = dict[str, None](), dict[str, None]()
    for cue in _STATED.finditer(bare):
        lead = _BEFORE_ANSWER.match(bare, cue.end())
        start = lead.end() if lead else cue.end()
        if choice := _STATED_CHOICE.match(bare, start):
            letters[(choice["bracketed"] or choice["bare"]).upper()] = None
        formula = _FORMULA.match(bare, start)
        if formula and not _GOES_ON.match(bare, formula.end()):
            formulas |= dict.fromkeys(r for r in _readings(formula.group()) if not r.isalpha())
    for formula in _FORMULA.finditer(bare):
        for part in _terms(formula.group()):
            if _QUOTIENT.search(part) and not _ORDINARY.fullmatch(part):
                formulas[part] = None
    return list(letters), list(formulas)[:_MOST_FORMULAS]


def _readings(formula: str) -> Iterator[str]:
    """Yield a formula, and the sides of an equation."""
    yield from (side for side in map(_trimmed, (formula, *formula.split("="))) if side)


def _terms(formula: str) -> Iterator[str]:
    """Yield the parts of a formula between blanks, equals signs and dollars."""
    yield from (part for part in map(_trimmed, re.split(r"[=$ ]+", formula)) if part)


def _trimmed(formula: str) -> str:
    """Return a formula without the sentence's punctuation and unmatched brackets."""
    text = formula.strip(" $.,=*")
    for opening, closing in ("()", "[]", "{}"):
        if text.startswith(opening) and text.count(opening) > text.count(closing):
            text = text[1:]
        if text.endswith(closing) and text.count(closing) > text.count(opening):
            text = text[:-1]
        inner = text[1:-1]
        if text.startswith(opening) and text.endswith(closing) and opening not in inner:
            text = inner
    return text.strip(" $.,=*")


def quoted_solution(candidate: str, instruction: str, tasks: Iterable[Task]) -> str | None:
    """Return the first five consecutive words that the candidate shares with a task's solution.

    Compares case-insensitively and without punctuation; the instruction's own words are skipped.
    """
    own = runs(words_of(candidate), _SHARED_WORDS) - runs(words_of(instruction), _SHARED_WORDS)
    spaced = [f" {' '.join(run)} " for run in own]
    for task in tasks:
        solution = _spaced(task.solution)
        # Sorted, so that the run that is named does not depend on string hashing.
        if shared := sorted(run for run in spaced if run in solution):
            return shared[0].strip()
    return None


@lru_cache(maxsize=8192)
def _spaced(text: str) -> str:
    """Return the words with a blank around each; cached, since every hint of a phase is compared."""
    return f" {' '.join(words_of(text))} "


def think_tags_match(text: str) -> bool:
    """Return whether every <think> is closed and every </think> was opened."""
    depth = 0
    for tag in _THINK_TAG.finditer(text):
        depth += 1 if tag.group() == "<think>" else -1
        if depth < 0:
            return False
    return depth == 0


@dataclass(frozen=True, slots=True)
class HintRules(InstructionRules):
    """The contract of every hint in a run. A hint that breaks it is rejected, never repaired.

    Attributes:
        equal: compares answers mathematically; None compares their texts.
    """

    original: str = ""  # it has no protocol tags to keep
    equal: Equal | None = None

    def check(
        self,
        candidate: str,
        parent: str,
        others: Iterable[str],
        tasks: Iterable[Task],
        instruction: str = "",
    ) -> str | None:
        """Return why the candidate is rejected, in a few words; None if it is valid.

        Args:
            parent: the hint it was derived from; may be empty.
            others: hints already tried in this phase, which it must not copy.
            tasks: the questions that its author was shown, whose answers and solutions it must not
                contain.
            instruction: the policy's instruction; text already in it is not a leak.
        """
        if placed := [p for p in PLACEHOLDERS if p in candidate]:
            return f"holds {', '.join(placed)}, which only the reflection prompt may"
        if not think_tags_match(candidate):
            return "unclosed or stray think tag"
        known, tasks = f"{instruction}\n{parent}", list(tasks)
        # A text of a few words is always within two words of the empty hint; that is not a copy.
        earlier = [text for text in (parent, *others) if text.strip()]
        if reason := InstructionRules.check(self, candidate, known, earlier, tasks):
            return reason
        answer = leaked_number(candidate, known, tasks)
        if answer is None:
            answer = stated_answer(candidate, known, tasks, self.equal)
        if answer is not None:
            return f"brings in the answer {answer!r} of a hard question"
        if (quoted := quoted_solution(candidate, instruction, tasks)) is not None:
            return f"quotes the solution of a hard question: {quoted!r}"
        return None
