r"""Answers in \boxed{…}: extracted from a text, and compared with ground truths.

A policy's answer may be hostile: "9**9**9**9" or deep nesting must neither hang a run nor exhaust
its memory. math-verify limits its time by `signal.alarm`, which fails in threads and does not
interrupt sympy inside C code. So it runs in separate processes, which the kernel ends if they take too long: this
file, run by its path, so it imports nothing of cotune at its top.
"""

import importlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

MAX_CHARACTERS = 1000
"""Longer answers score 0 without being compared."""

_MOST_WORKERS = 4
_PER_WORKER = 16
"""Answers for which one more worker is started, which takes about as long as comparing twice as many."""
_BOX = re.compile(r"\\boxed\s*\{")
# Also matches escaped characters, so that the braces of \{ and \} do not count.
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SEPARATOR = re.compile(r"\b(and|or)\b|,|;")
_NEAR = 10
_RELATED = 70
"""Characters between two boxes that belong together, without and with a separator among them."""
_INTEGER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)", re.ASCII)


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{…}; None if there is none or the last one is unclosed.

    As in MATH's `last_boxed_only_string`, the last one that is opened decides, so that an earlier box does not count if
    the final one is cut off. Of nested boxes it is the innermost. As in math-verify, boxes before it belong to the same
    answer if fewer than 10 characters are between them, or fewer than 70 with a comma, a semicolon, "and" or "or";
    contents are joined by ", ", repeated ones once.

    >>> last_boxed(r"It is \boxed{1}. That is to say \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> last_boxed(r"So \boxed{2}, \boxed{3}.")
    '2, 3'
    """
    contents: list[str] = []
    following = len(text)
    for box in reversed(list(_BOX.finditer(text))):
        end = _find_closing(text, box.end(), following)
        if end is None:
            break
        content = text[box.end() : end]
        between = text[end + 1 : following]
        if contents and len(between) >= _NEAR:
            related = len(between) < _RELATED and _SEPARATOR.search(between)
            if not related or content.strip() == contents[-1].strip():
                break
        if not contents or content.strip() != contents[-1].strip():
            contents.append(content)
        following = box.start()
    if len(contents) < 2:
        return contents[0] if contents else None
    return ", ".join(content.strip() for content in reversed(contents))


def _find_closing(text: str, start: int, end: int) -> int | None:
    """Return the position of the brace that closes the one before `start`; None without one."""
    depth = 1
    for mark in _BRACE.finditer(text, start, end):
        depth += {"{": 1, "}": -1}.get(mark.group(), 0)
        if depth == 0:
            return mark.start()
    return None


_Question = tuple[str, tuple[str, ...]]
"""An answer and the ground truths that only math-verify can compare it with."""


class BoxedReward:
    """1 if an answer equals one of the ground truths mathematically, by math-verify; else 0.

    Equal texts and plain integers ("1,024" is 1024) are compared here. Other answers go to worker
    processes, started when first needed and kept: a second to start, about 15 ms an answer. An answer
    that takes too long (in CPU seconds, so that a busy machine fails none), or crashes its worker,
    scores 0, and a new worker continues. Threads may share it; they take turns.

    Args:
        seconds: CPU time limit for one answer, with all its ground truths.
        plain_integers: a ground truth that is a plain integer equals only plain integers.
            Otherwise 12 \\times 13 equals 156, and a policy may learn to box the question.

    Raises:
        ConfigError: a worker does not start.
    """

    def __init__(self, seconds: float = 5.0, *, plain_integers: bool = False) -> None:
        self._seconds = seconds
        self._plain_integers = plain_integers
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()

    def __call__(self, answer: str | None, truths: Sequence[str]) -> float:
        return self.score([(answer, truths)])[0]

    def score(self, pairs: Sequence[tuple[str | None, Sequence[str]]]) -> list[float]:
        """Return the rewards of answers, each with its ground truths, in order."""
        settled = [self._settle(answer, truths) for answer, truths in pairs]
        questions = list(dict.fromkeys(each for each in settled if isinstance(each, tuple)))
        rewards: dict[_Question, float] = {}
        if questions:
            workers = min(_MOST_WORKERS, os.cpu_count() or 1, -(-len(questions) // _PER_WORKER))
            with self._lock, ThreadPoolExecutor(workers) as pool:
                # After an error or Ctrl-C, map cancels the answers that are not begun.
                rewards = dict(zip(questions, pool.map(self._compare, questions), strict=True))
        return [rewards[each] if isinstance(each, tuple) else each for each in settled]

    def _settle(self, answer: str | None, truths: Sequence[str]) -> float | _Question:
        """Return the reward of an answer, or what only a worker can compare."""
        text = (answer or "").strip()
        if not text or len(text) > MAX_CHARACTERS:
            return 0.0
        normal = normal_form(text)
        number = _read_integer(normal)
        unsettled: list[str] = []
        for truth in map(str.strip, truths):
            if len(truth) > MAX_CHARACTERS:
                continue
            normal_truth = normal_form(truth)
            expected = _read_integer(normal_truth)
            if normal == normal_truth or (number is not None and number == expected):
                return 1.0
            differs = expected is not None and (number is not None or self._plain_integers)
            if not differs:
                unsettled.append(truth)
        return (text, tuple(unsettled)) if unsettled else 0.0

    def _compare(self, question: _Question) -> float:
        worker = self._idle.pop() if self._idle else _Worker()
        if worker.ended:
            worker = _Worker()
        try:
            return worker.compare(*question, self._seconds)
        finally:
            self._idle.append(worker)


class _Worker:
    """A process that compares one answer at a time (`main`), and ends with this one."""

    def __init__(self) -> None:
        # By path with -P, so that no file of this folder or the user's shadows a library's module.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            # sympy's order of simplification may depend on the order of sets.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        hello = self._exchange("") or {"error": "it ended"}
        if "error" in hello:
            from cotune.errors import ConfigError

            raise ConfigError(
                f"the worker that compares answers did not start: {hello['error']}; check that "
                f"`{sys.executable} -c 'import math_verify'` works (pip install 'math-verify[antlr4_13_2]')"
            )

    @property
    def ended(self) -> bool:
        # Also true in a fork of the process that started it: two processes cannot share the pipe.
        return self._process.poll() is not None

    def compare(self, answer: str, truths: Sequence[str], seconds: float) -> float:
        """Return the reward of an answer; 0 if it took more than `seconds`, which ends the worker."""
        question = json.dumps({"answer": answer, "truths": truths, "seconds": seconds})
        reply = self._exchange(question + "\n")
        return float(reply is not None and reply["equal"])

    def _exchange(self, line: str) -> dict[str, Any] | None:
        """Send a line and read one; None if the worker ended before it replied."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if reply.endswith("\n"):
            return json.loads(reply)
        self._process.wait()
        return None


def _read_integer(text: str) -> str | None:
    """Return a plain integer without commas, plus sign and leading zeros; None for other texts."""
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    digits = match[2].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if match[1] == "-" and digits != "0" else digits


MEMORY_BYTES = 2**30
"""Limit of the address space, against answers like 10^(10^9). The libraries need 70 MB."""

_SMALL = 1e-4
_SPACE = r"(?:\s|~|\\[ ,;:!]|\\q?quad\b)"
# A full stop that ends neither an ellipsis nor \right. closes a sentence; a backslash is what is left of "\ ".
_AROUND = re.compile(rf"^(?:{_SPACE}|\\approx\b|≈)+|(?:{_SPACE}|\\|(?<!\.)(?<!\\right)\.)+$")
_DEGREE = re.compile(r"\s*(?:°|\^?\{?\\degrees?\b\}?)")
_POWER = re.compile(
    r"(?<![\w.])(?P<number>\d+\.?\d*|\.\d+)[eE](?P<power>[+-]?\d{1,3})(?![\w.])", re.ASCII
)


# ---- the worker


def main() -> None:
    """Write {"ready": true} or {"error": …}, then {"equal": true | false} for each question that is read.

    A question is {"answer": …, "truths": […], "seconds": …} on a line. The process ends when its input ends, when a
    comparison takes more CPU seconds, and on any error.
    """
    # Ctrl-C goes to the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries may print to stdout, which must not be taken for a reply.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    try:
        equal = comparison()
        # The libraries prepare their parsers, which no answer should wait for.
        equal("x^2+2x+1", [r"(x+\frac{1}{2}\sqrt{4})^2"])
    except ImportError as error:
        reply(error=f"{type(error).__name__}: {error}")
        return
    limit_memory()
    reply(ready=True)
    for line in sys.stdin:
        pair = json.loads(line)
        # The kernel ends this process after so many CPU seconds, even inside C code.
        signal.setitimer(signal.ITIMER_PROF, pair["seconds"])
        verdict = equal(pair["answer"], pair["truths"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply(equal=verdict)


def normal_form(text: str) -> str:
    r"""Return an answer without what math-verify misreads.

    >>> normal_form(r" $17$."), normal_form(r"\approx 3.14\ "), normal_form("-4.5E+33"), normal_form("90°")
    ('17', '3.14', '-4.5 \\times 10^{33}', '90^\\circ')
    """
    text = _AROUND.sub("", text)
    if len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text[1:-1]:
        text = _AROUND.sub("", text[1:-1])
    text = _DEGREE.sub(r"^\\circ", text)
    return _POWER.sub(lambda m: rf"{m['number']} \times 10^{{{int(m['power'])}}}", text)


def comparison() -> Callable[[str, Sequence[str]], bool]:
    """Return math-verify as a function of an answer and its ground truths.

    Only whole answers are parsed: by default math-verify would extract the 5 from "hello 5 @@". Its
    own time limits are off, since they do not stop a computation inside C code.
    """
    library = importlib.import_module("math_verify")
    latex = library.LatexExtractionConfig(boxed_match_priority=0)

    def parse(text: str) -> list[object]:
        return library.parse(
            f"\\boxed{{{text}}}", [latex], extraction_mode="first_match", parsing_timeout=None
        )

    def same(answer: str, truth: str) -> bool:
        parsed_answer = parse(answer)
        parsed_truth = parse(truth)
        # The order matters: an equation equals its right side if the ground truth is that side.
        is_equal = library.verify(parsed_truth, parsed_answer, timeout_seconds=None)
        return is_equal and not differ(parsed_answer, parsed_truth)

    def equal(answer: str, truths: Sequence[str]) -> bool:
        return any(
            same(*pair)
            for truth in truths
            for pair in dict.fromkeys([(normal_form(answer), normal_form(truth)), (answer, truth)])
        )

    return equal


def differ(answer: Sequence[object], truth: Sequence[object]) -> bool:
    """Return whether two parsed answers are small numbers that differ: math-verify compares six decimals."""
    try:
        a, b = (float(each[0]) for each in (answer, truth))  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError, OverflowError):
        return False
    return max(abs(a), abs(b)) < _SMALL and not math.isclose(a, b, rel_tol=_SMALL)


def limit_memory() -> None:
    """Limit the address space if the system supports it."""
    with suppress(ValueError, OSError):  # macOS refuses, and so does a system with a lower limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
