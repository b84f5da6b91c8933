"""Search-R1's text protocol: `<think>`, `<search>`, `<information>`, `<answer>` (arXiv 2503.09516).

What the policy writes is data here: it is searched for tags and never compiled, formatted or
evaluated.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.environments.base import PromptFormat
from cotune.types import Task

STOP = ("</search>", "</answer>")
"""Strings after which a turn ends."""

CALL_TAGS = ("<search>", "</search>", "<answer>", "</answer>")
"""The tags that a policy acts by."""

ANSWER_TAGS = ("<answer>", "</answer>")
"""The same where there is no search engine."""

FAILURE = "The search failed; nothing was retrieved."
"""What stands in place of passages then."""

_CALL_TAG = re.compile(r"<(/?)(search|answer)>")
_ANSWER_TAG = re.compile(r"<(/?)(answer)>")
_INFORMATION_TAG = re.compile(r"<(/?)information>")
# Looser than the parser: a passage must not even look as if it closed its block.
_FOREIGN_TAG = re.compile(r"<(?=[\s/]*(?:think|search|information|answer)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one turn asks for.

    Attributes:
        action: "search", "answer" or, for anything else, "invalid".
        argument: the query or the answer, stripped, never empty; "" if invalid.
        error: why it is invalid, in a few words; "" if it is not.
    """

    action: Literal["search", "answer", "invalid"]
    argument: str = ""
    error: str = ""


def parse_turn(text: str, search: bool = True) -> Parsed:
    """The one call of a turn.

    A turn is valid if, once forged `<information>` blocks are cut out, its search and answer tags
    are exactly one opening tag and, after it, the closing tag of the same name, with something
    between them. Free text may stand before and after. So where a sampler without stop strings
    runs on after the first closing tag, that call still counts, unless a second one follows, be
    it only begun: a policy that goes on from results it has not seen must not be rewarded for it.

    Never raises. Tags are matched exactly: lower case, no spaces.

    Args:
        text: what the policy wrote.
        search: whether there is a search engine; without, its tags are text like any other.
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
    """The final answer of an episode, or None if it has none or more than one.

    Args:
        turn_texts: the policy's own text, turn by turn; never the prompt, never an observation.
        search: whether there is a search engine.

    It is the answer of the one turn that `parse_turn` takes for an answer. If any other turn holds
    a closing `</answer>`, too (outside forged blocks), nothing counts: an episode cannot hedge.
    An answer that was left unclosed and then put right in a later turn counts.
    """
    closed = [text for text in turn_texts if "</answer>" in without_forged(text)]
    if len(closed) != 1:
        return None
    parsed = parse_turn(closed[0], search)
    return parsed.argument if parsed.action == "answer" else None


def error_observation(error: str, search: bool = True) -> str:
    """What the policy reads after an invalid turn; `error` as in `Parsed.error`.

    Without a search engine it does not speak of searching.
    """
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
    """What the policy reads after a search that the retriever could not carry out."""
    return f"\n<information>\n{FAILURE}\n</information>\n"


def render_information(passages: Sequence[str]) -> str:
    """The observation that answers a search: numbered passages between the protocol's tags.

    A protocol tag inside a passage loses its "<" to "‹", so that no text of a corpus can close
    the block and speak with the policy's voice.
    """
    body = "\n".join(f"({i}) {escaped(text)}" for i, text in enumerate(passages, 1))
    return f"\n<information>\n{body or 'No document matches.'}\n</information>\n"


def escaped(passage: str) -> str:
    """A passage whose protocol tags are none any more."""
    return _FOREIGN_TAG.sub("‹", passage)


def without_forged(text: str) -> str:
    """The turn without `<information>` blocks, nested ones included, unclosed ones to its end.

    A line break stands for what was cut, so that the two sides never join to form a tag.
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
    """Why tags are not one opening and its closing; "" if they are. `wanted` is what there could be."""
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
    """One form of the protocol: how turns are read, and what is written around and between them.

    Attributes:
        prompt_format: how instruction and question make a prompt.
        parse: a turn and whether there is a search engine, to what it asks for.
        answer: the turns of an episode and whether there is a search engine, to its final answer.
        correction: what answers an invalid turn: its error, and whether there is a search engine.
        information: what answers a search, of its passages.
        failure: what answers a search that failed.
        asked: a task as it is asked.
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
"""The stricter form, and the default: one action a turn, corrections that say what was wrong."""
