"""Fakes for tests of code that is built on cotune; the library itself uses none of them."""

from collections.abc import Iterable

from cotune.contracts import LLMError
from cotune.records import Completion


class ScriptedLLM:
    """An `LLM` that answers from a list, in order.

    Args:
        replies: a text, a `Completion` with its token counts, or an `LLMError` to raise.

    Attributes:
        prompts: what it was asked, in order.
    """

    def __init__(self, replies: Iterable[str | Completion | LLMError]) -> None:
        self._replies = list(replies)
        self.prompts: list[str] = []

    def complete(self, prompt: str) -> Completion:
        """Raises AssertionError when there are more questions than replies."""
        self.prompts.append(prompt)
        if len(self.prompts) > len(self._replies):
            raise AssertionError(
                f"ScriptedLLM was asked {len(self.prompts)} times, expected at most "
                f"{len(self._replies)}: add a reply"
            )
        reply = self._replies[len(self.prompts) - 1]
        if isinstance(reply, LLMError):
            raise reply
        return reply if isinstance(reply, Completion) else Completion(reply)
