"""Compare answers mathematically; `boxed.BoxedReward` starts it as a separate process.

It reads and writes JSON lines: first it writes {"ready": true} or {"error": …}, then
{"equal": true | false} for each {"answer": …, "truths": […], "seconds": …} that it reads, where seconds are
the CPU time that the comparison may take. It ends when its input ends, when a comparison takes longer, and
on any error. It imports nothing of cotune, so that it can be run by its path.
"""

import importlib
import json
import math
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

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


def main() -> None:
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

    That is space and a full stop around it, a dollar sign on each side, "approximately", signs of degrees,
    and powers of ten as programs write them.

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

    Raises:
        ImportError: math-verify is not installed.
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
    """Return whether two parsed answers are small numbers that differ.

    math-verify compares six decimals, so that to it 0.0000001 is 0.0000002.
    """
    try:
        a, b = (float(each[0]) for each in (answer, truth))  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError, OverflowError):
        return False
    return max(abs(a), abs(b)) < _SMALL and not math.isclose(a, b, rel_tol=_SMALL)


def limit_memory() -> None:
    """Limit the address space if the system supports it."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    with suppress(ValueError, OSError):  # macOS refuses
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    main()
