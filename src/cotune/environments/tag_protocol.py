"""Search-R1's text protocol: `<think>`, `<search>`, `<information>`, `<answer>` (arXiv 2503.09516).

There are two forms: `TAGS`, the stricter default, and `SEARCH_R1`, which Search-R1's own data and
checkpoints need. The policy's text is data: it is searched for tags and never compiled, formatted
or evaluated.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cotune.environments.base import PromptFormat
from cotune.types import Task

STOP = ("</search>", "</answer>")
"""Strings after which a turn ends."""

CALL_TAGS = ("<search>", "</search>", "<answer>", "</answer>")
"""The tags of a policy's actions."""

ANSWER_TAGS = ("<answer>", "</answer>")
"""The tags of a policy's actions without a search engine."""

FAILURE = "The search failed; nothing was retrieved."
"""The observation's text if a search failed."""

_CALL_TAG = re.compile(r"<(/?)(search|answer)>")
_ANSWER_TAG = re.compile(r"<(/?)(answer)>")
_INFORMATION_TAG = re.compile(r"<(/?)information>")
# Looser than the parser: a passage must not even appear to close its block.
_FOREIGN_TAG = re.compile(r"<(?=[\s/]*(?:think|search|information|answer)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The action of a turn.

    Attributes:
        action: "search", "answer" or, for anything else, "invalid".
        argument: the query or the answer, stripped; "" if invalid.
        error: why it is invalid, in a few words; "" if it is not.
    """

    action: Literal["search", "answer", "invalid"]
    argument: str = ""
    error: str = ""


def parse_turn(text: str, search: bool = True) -> Parsed:
    """Parse the action of a turn, in the stricter form.

    After forged `<information>` blocks are cut out, a valid turn has exactly one opening tag of
    search or answer, followed by the closing tag of the same name, with text between them. Other
    text may stand before and after. If a sampler without stop strings continues after the first
    closing tag, the action still counts, unless a second one starts: a policy that continues from
    results it has not seen must not be rewarded.

    Never raises. Tags are matched exactly: lower case, no spaces.

    Args:
        text: the policy's turn.
        search: whether there is a search engine; without one, its tags are plain text.
    """
    own = without_forged(text)
    tags = list((_CALL_TAG if search else _ANSWER_TAG).finditer(own))
    error = _malformed(tags, "<search> or <answer>" if search else "<answer>")
    if error:
        return Parsed("invalid", error=error)
    opening, closing = tags
    argument = own[opening.end() : closing.start()].strip()
    if opening[2] == "search":
        return Parsed("search", argument) if argument else Parsed("invalid", error="empty query")
    return Parsed("answer", argument) if argument else Parsed("invalid", error="empty answer")


def own_answer(turn_texts: Sequence[str], search: bool = True) -> str | None:
    """Return the final answer of an episode, or None if it has none or more than one.

    It is the answer of the only turn with a closing `</answer>` outside forged blocks, if that turn
    is valid. An episode cannot hedge with several answers; an answer that was left unclosed may be
    repeated in a later turn.

    Args:
        turn_texts: the policy's own text, turn by turn, without prompt and observations.
        search: whether there is a search engine.
    """
    closed = [text for text in turn_texts if "</answer>" in without_forged(text)]
    if len(closed) != 1:
        return None
    parsed = parse_turn(closed[0], search)
    return parsed.argument if parsed.action == "answer" else None


def error_observation(error: str, search: bool = True) -> str:
    """Return the observation after an invalid turn; `error` as in `Parsed.error`."""
    if not search:
        return (
            f"\nMy previous action is invalid: {error}. To finish, I write the answer between "
            "<answer> and </answer>. Let me try again.\n"
        )
    return (
        f"\nMy previous action is invalid: {error}. To search, I write one query between <search> "
        "and </search>. To finish, I write the answer between <answer> and </answer>. "
        "One of the two in a turn. Let me try again.\n"
    )


def failure_observation() -> str:
    """Return the observation after a search that failed."""
    return f"\n<information>\n{FAILURE}\n</information>\n"


def render_information(passages: Sequence[str]) -> str:
    """Return the observation of a search: numbered passages between the protocol's tags.

    In a protocol tag inside a passage "<" becomes "‹", so that no text of a corpus can close the
    block and pass for the policy's own text.
    """
    body = "\n".join(f"({i}) {escaped(text)}" for i, text in enumerate(passages, 1))
    return f"\n<information>\n{body or 'No document matches.'}\n</information>\n"


def escaped(passage: str) -> str:
    """Return a passage with its protocol tags made harmless."""
    return _FOREIGN_TAG.sub("‹", passage)


def without_forged(text: str) -> str:
    """Cut `<information>` blocks out of a turn, nested ones included, unclosed ones to its end.

    A line break takes the place of each, so that the two sides cannot join to form a tag.
    """
    kept: list[str] = []
    depth, start = 0, 0
    for tag in _INFORMATION_TAG.finditer(text):
        if depth == 0:
            kept.append(text[start : tag.start()])
        depth = max(depth - 1, 0) if tag[1] else depth + 1
        start = tag.end()
    if depth == 0:
        kept.append(text[start:])
    return "\n".join(kept)


def _malformed(tags: Sequence[re.Match[str]], wanted: str) -> str:
    """Return why tags are not one opening and its closing tag; "" if they are."""
    names = {tag[2] for tag in tags}
    if not names:
        return f"no {wanted} tag"
    if len(names) == 2:
        return "search and answer in one turn"
    (name,) = names
    marks = "".join(tag[1] or "<" for tag in tags)
    if marks == "</":
        return ""
    if "/" not in marks:
        return f"unclosed <{name}>"
    if marks.count("<") < 2:
        return f"stray </{name}>"
    return f"nested <{name}>" if "<<" in marks else f"more than one <{name}>"


def _as_it_is(task: Task) -> Task:
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class TagProtocol:
    """One form of the protocol, of functions that can be pickled with an environment.

    `search` below says whether there is a search engine.

    Attributes:
        prompt_format: the layout of instruction and question.
        parse: (text of a turn, search) to its action.
        answer: (texts of an episode's turns, search) to the final answer.
        correction: (error of an invalid turn, search) to the observation.
        information: passages to the observation of a search.
        failure: the observation of a search that failed.
        asked: a task to the task with the question as the policy reads it.
    """

    prompt_format: PromptFormat
    parse: Callable[[str, bool], Parsed]
    answer: Callable[[Sequence[str], bool], str | None]
    correction: Callable[[str, bool], str]
    information: Callable[[Sequence[str]], str]
    failure: Callable[[], str]
    asked: Callable[[Task], Task] = _as_it_is


PROMPT_FORMAT = PromptFormat(question_prefix="Question: ")

TAGS = TagProtocol(
    prompt_format=PROMPT_FORMAT,
    parse=parse_turn,
    answer=own_answer,
    correction=error_observation,
    information=render_information,
    failure=failure_observation,
)
"""The stricter form and the default: one action a turn, and corrections that give the error."""


# Search-R1's own form, written from what github.com/PeterGriffinJin/Search-R1 does in generation.py,
# qa_em.py and its data scripts; docs/how-to/search-r1.md says where it differs on purpose.

SEARCH_R1_PROMPT_FORMAT = PromptFormat(
    question_prefix="Question: ", question_suffix="\n", separator=" "
)
"""One user message: the instruction, a space, "Question: ", the question and a line break."""

INVALID_ACTION = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
    "</search>. If I want to give the final answer, I should put the answer between <answer> and "
    "</answer>. Let me try again.\n"
)
"""Exactly the text that its policies were trained on after a turn without an action."""

_CLOSING = re.compile(r"</(search|answer)>")
_CLOSING_ANSWER = re.compile(r"</(answer)>")
_SEARCH_R1_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def parse_search_r1_turn(text: str, search: bool = True) -> Parsed:
    """Parse the action of a turn in Search-R1's form: the first closing tag decides.

    Text after that tag does not count. The argument starts at the first opening tag of the same
    name, and may be empty or hold other tags. Never raises.

    Args:
        text: the policy's turn.
        search: whether there is a search engine; without one, its tags are plain text.
    """
    closing = (_CLOSING if search else _CLOSING_ANSWER).search(text)
    if closing is None:
        return Parsed("invalid", error="no action is closed")
    name = "search" if closing[1] == "search" else "answer"
    _, opening, argument = text[: closing.start()].partition(f"<{name}>")
    if not opening:
        return Parsed("invalid", error=f"stray </{name}>")
    return Parsed(name, argument.strip())


def search_r1_answer(turn_texts: Sequence[str], search: bool = True) -> str | None:
    """Return the final answer of an episode, or None if it has none, a blank one, or several.

    Search-R1 takes the last `<answer>` of prompt and response together, if there are two or more.
    Here answers count only in the policy's own turns, outside forged `<information>` blocks; there
    must be exactly one, and it must be its turn's action.

    Args:
        turn_texts: the policy's own text, turn by turn, without prompt and observations.
        search: whether there is a search engine.
    """
    found = [
        (text, match[1].strip())
        for text in turn_texts
        for match in _SEARCH_R1_ANSWER.finditer(_up_to_the_last_answer(text))
    ]
    if len(found) != 1:
        return None
    text, answer = found[0]
    return answer or None if parse_search_r1_turn(text, search).action == "answer" else None


def _up_to_the_last_answer(text: str) -> str:
    """Return a turn up to its last `</answer>`; beyond, each `<answer>` would be searched to the end."""
    before, closing, _ = without_forged(text).rpartition("</answer>")
    return before + closing


def search_r1_information(passages: Sequence[str]) -> str:
    """Return the observation of a search: `Doc 1(Title: "Oslo") …`, one passage a line.

    In a protocol tag inside a passage "<" becomes "‹", as in the other form.

    Args:
        passages: `(Title: "Oslo") …`, numbered or not; an empty title is added if there is none.
    """
    body = "\n".join(_numbered(i, escaped(passage)) for i, passage in enumerate(passages, 1))
    return _block(body.strip())


def _with_question_mark(task: Task) -> Task:
    """Return the task with a question mark at its end, as in Search-R1's data scripts."""
    question = task.question.strip()
    return task if question.endswith("?") else replace(task, question=f"{question}?")


def _block(body: str) -> str:
    return f"\n\n<information>{body}</information>\n\n"


def _search_r1_correction(error: str, search: bool) -> str:
    """Return the observation after an invalid turn. Search-R1's does not give the error."""
    return INVALID_ACTION if search else error_observation(error, search)


def _search_r1_failure() -> str:
    return _block(FAILURE)


def _numbered(number: int, passage: str) -> str:
    if passage.startswith(f"Doc {number}(Title: "):
        return passage
    return f"Doc {number}{passage if passage.startswith('(Title: ') else f'(Title: ) {passage}'}"


SEARCH_R1 = TagProtocol(
    prompt_format=SEARCH_R1_PROMPT_FORMAT,
    parse=parse_search_r1_turn,
    answer=search_r1_answer,
    correction=_search_r1_correction,
    information=search_r1_information,
    failure=_search_r1_failure,
    asked=_with_question_mark,
)
