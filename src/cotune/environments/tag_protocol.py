"""The Search-R1 text protocol: `<think>`, `<search>`, `<information>`, `<answer>`."""

from collections.abc import Sequence


def render_information(passages: Sequence[str]) -> str:
    """The observation that answers a search: numbered passages between the protocol's tags."""
    body = "\n".join(f"({i}) {text}" for i, text in enumerate(passages, 1))
    return f"\n<information>\n{body or 'No document matches.'}\n</information>\n"


def render_prompt(instruction: str, question: str) -> str:
    """The user message of a task under an instruction."""
    return f"{instruction}\n\nQuestion: {question}"
