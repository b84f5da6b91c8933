"""Search-R1's own form of the tag protocol, for its data, checkpoints and results.

Written from what github.com/PeterGriffinJin/Search-R1 does in `generation.py`, `qa_em.py` and its data
scripts; docs/how-to/search-r1.md says where it differs on purpose.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from cotune.environments.base import PromptFormat
from cotune.environments.tag_protocol import (
    FAILURE,
    Parsed,
    TagProtocol,
    error_observation,
    escaped,
    without_forged,
)
from cotune.types import Task

PROMPT_FORMAT = PromptFormat(question_prefix="Question: ", question_suffix="\n", separator=" ")
"""One user message: the instruction, a space, "Question: ", the question and a line break."""

INVALID_ACTION = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
    "</search>. If I want to give the final answer, I should put the answer between <answer> and "
    "</answer>. Let me try again.\n"
)
"""What its policies were trained to read after a turn without an action, to the letter."""

_CLOSING = re.compile(r"</(search|answer)>")
_CLOSING_ANSWER = re.compile(r"</(answer)>")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def parse_turn(text: str, search: bool = True) -> Parsed:
    """The action of a turn: what the first closing tag closes.

    What follows that tag does not count. The argument begins at the first opening tag of the same
    name, and may be empty or hold other tags. Never raises.

    Args:
        text: what the policy wrote.
        search: whether there is a search engine; without, its tags are text like any other.
    """
    closing = (_CLOSING if search else _CLOSING_ANSWER).search(text)
    if closing is None:
        return Parsed("invalid", error="no action is closed")
    name = "search" if closing[1] == "search" else "answer"
    _, opening, argument = text[: closing.start()].partition(f"<{name}>")
    if not opening:
        return Parsed("invalid", error=f"stray </{name}>")
    return Parsed(name, argument.strip())


def own_answer(turn_texts: Sequence[str], search: bool = True) -> str | None:
    """The final answer of an episode, or None if it has none, a blank one, or more than one.

    Search-R1 takes the last `<answer>` of prompt and response together, if there are two or more.
    Here answers are looked for in the policy's own turns, outside `<information>` blocks that it
    forged, and there must be exactly one, which its turn was taken for.

    Args:
        turn_texts: the policy's own text, turn by turn; never the prompt, never an observation.
        search: whether there is a search engine.
    """
    found = [
        (text, match[1].strip())
        for text in turn_texts
        for match in _ANSWER.finditer(without_forged(text))
    ]
    if len(found) != 1:
        return None
    text, answer = found[0]
    return answer or None if parse_turn(text, search).action == "answer" else None


def correction(error: str, search: bool = True) -> str:
    """What the policy reads after an invalid turn. Search-R1's does not say what was wrong."""
    return INVALID_ACTION if search else error_observation(error, search)


def information(passages: Sequence[str]) -> str:
    """The observation that answers a search: `Doc 1(Title: "Oslo") …`, a passage a line.

    A protocol tag inside a passage loses its "<" to "‹", as in the other form.

    Args:
        passages: `(Title: "Oslo") …`, or numbered already; one without a title has an empty one.
    """
    body = "\n".join(_numbered(i, escaped(passage)) for i, passage in enumerate(passages, 1))
    return _block(body.strip())


def failure() -> str:
    """What the policy reads after a search that the retriever could not carry out."""
    return _block(FAILURE)


def asked(task: Task) -> Task:
    """The task with its question as Search-R1's data scripts write it: a question mark at its end."""
    question = task.question.strip()
    return task if question.endswith("?") else replace(task, question=f"{question}?")


def _block(body: str) -> str:
    return f"\n\n<information>{body}</information>\n\n"


def _numbered(number: int, passage: str) -> str:
    if passage.startswith(f"Doc {number}(Title: "):
        return passage
    return f"Doc {number}{passage if passage.startswith('(Title: ') else f'(Title: ) {passage}'}"


SEARCH_R1 = TagProtocol(
    prompt_format=PROMPT_FORMAT,
    parse=parse_turn,
    answer=own_answer,
    correction=correction,
    information=information,
    failure=failure,
    asked=asked,
)
