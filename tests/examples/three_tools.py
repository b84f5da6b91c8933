"""The example `three_tools` for tests: its folder, and a scripted LLM."""

import itertools
import re
from pathlib import Path

from cotune.types import Completion

FOLDER = Path(__file__).parents[2] / "examples" / "three_tools"

_FIRST = (
    "Choose whichever tool fits the question",
    "Before anything else call a tool",
    "Never guess; let one of the tools work it out",
    "Look everything up with your tools",
)
_THEN = (
    "then say again what it told you.",
    "and copy its reply as your answer.",
    "so that the final word is taken from its response.",
    "and after that write down only the result it gave.",
)


class Teacher:
    """A scripted LLM that answers with as many instructions as the prompt asks for.

    Attributes:
        instructions: how often it was asked.
    """

    def __init__(self) -> None:
        texts = [f"{first}, {then}" for then in _THEN for first in _FIRST]
        self._texts = itertools.cycle(texts)
        self.instructions = 0

    def complete(self, prompt: str) -> Completion:
        asked = re.search(r"<ins_1>\.\.\.</ins_1> to <ins_(\d+)>", prompt)
        assert asked is not None
        self.instructions += 1
        numbered = [f"<ins_{i}>{next(self._texts)}</ins_{i}>" for i in range(1, int(asked[1]) + 1)]
        return Completion("It guessed where it could have looked it up.\n" + "\n".join(numbered))
