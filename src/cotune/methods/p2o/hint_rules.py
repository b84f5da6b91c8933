"""The contract of a hint: an instruction's, plus nothing from a hard question's solution."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from cotune.methods.instruction_rules import InstructionRules
from cotune.methods.leaks import quoted_solution
from cotune.types import Task

_THINK_TAG = re.compile(r"</?think>")


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
    """The contract of every hint in a run. A hint that breaks it is rejected, never repaired."""

    original: str = ""  # it has no protocol tags to keep

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
        if not think_tags_match(candidate):
            return "unclosed or stray think tag"
        known, tasks = f"{instruction}\n{parent}", list(tasks)
        # A text of a few words is always within two words of the empty hint; that is not a copy.
        earlier = [text for text in (parent, *others) if text.strip()]
        if reason := InstructionRules.check(self, candidate, known, earlier, tasks):
            return reason
        if (quoted := quoted_solution(candidate, instruction, tasks)) is not None:
            return f"quotes the solution of a shown question: {quoted!r}"
        return None
