"""Compares answers as mathematics; `boxed.BoxedReward` starts it as a process of its own.

Speaks JSON lines. First it writes {"ready": true} or {"error": …}; then {"equal": true | false}
for each {"answer": …, "truths": […]} that it reads. It ends when its input ends, when one
comparison outlasts the seconds given as its argument, and at any fault: an answer that crashes it
is its reader's to judge. Imports nothing of cotune, so that it can be run by its path.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

MEMORY_BYTES = 2**30
"""Address space: 10^(10^9) must not take the machine's memory. The libraries alone need 70 MB."""


def main() -> None:
    seconds = float(sys.argv[1])
    # Ctrl-C goes to the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries print now and then: what they print must not pass for a reply.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(**fields: object) -> None:
        replies.write(json.dumps(fields) + "\n")
        replies.flush()

    try:
        equal = comparison()
    except ImportError as error:
        reply(error=f"{type(error).__name__}: {error}")
        return
    limit_memory()
    reply(ready=True)
    for line in sys.stdin:
        set_alarm(seconds)
        pair = json.loads(line)
        verdict = equal(pair["answer"], pair["truths"])
        set_alarm(0)
        reply(equal=verdict)


def comparison() -> Callable[[str, Sequence[str]], bool]:
    """math-verify as a function of an answer and its ground truths; ImportError where it is not.

    Nothing but the whole answer is parsed: by default math-verify would pick the 5 out of
    "hello 5 @@". Its own time limits are off: they do not stop a computation inside C code.
    """
    library = importlib.import_module("math_verify")
    latex = library.LatexExtractionConfig(boxed_match_priority=0)

    def parsed(text: str) -> list[object]:
        return library.parse(
            f"\\boxed{{{text}}}", [latex], extraction_mode="first_match", parsing_timeout=None
        )

    def equal(answer: str, truths: Sequence[str]) -> bool:
        own = parsed(answer)
        # The order counts: an equation equals its right side where the ground truth is that side.
        return any(library.verify(parsed(truth), own, timeout_seconds=None) for truth in truths)

    return equal


def limit_memory() -> None:
    """Caps the address space, where the system can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    unlimited = hard == resource.RLIM_INFINITY
    soft = MEMORY_BYTES if unlimited else min(MEMORY_BYTES, hard)
    with suppress(ValueError, OSError):  # macOS refuses
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def set_alarm(seconds: float) -> None:
    """The kernel ends this process then, even inside C code and with its parent gone; 0 is never.

    Half as long again as the parent waits, which ends it first as long as it lives.
    """
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 1.5 * seconds)


if __name__ == "__main__":
    main()
