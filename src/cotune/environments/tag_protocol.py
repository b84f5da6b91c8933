"""Search-R1's text protocol: `<think>`, `<search>`, `<information>`, `<answer>` (arXiv 2503.09516).

There are two forms: `TAGS`, the stricter default, and `SEARCH_R1`, which Search-R1's own data and
checkpoints need. The policy's text is data: it is searched for tags and never compiled, formatted
or evaluated.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from cotune.environments.base import PromptFormat
from cotune.types import Task

STOP = ("</search>", "</answer>")
"""Strings after which a turn ends."""

CALL_TAGS = ("<search>", "</search>", "<answer>", "</answer>")
"""The tags of a policy's actions."""

ANSWER_TAGS = ("<answer>", "</answer>")
"""The tags of an answer alone."""

FAILURE = "The search failed; nothing was retrieved."
"""The observation's text if a search failed."""

_CALL_TAG = re.compile(r"<(/?)(search|answer)>")
_INFORMATION_TAG = re.compile(r"<(/?)information>")
# Looser than the parser: a passage must not even appear to close its block.
_FOREIGN_TAG = re.compile(r"<(?=[\s/]*(?:think|search|information|answer)\b)", re.IGNORECASE)
_CLOSING = re.compile(r"</(search|answer)>")

PROMPT_FORMAT = PromptFormat(question_prefix="Question: ")


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


@dataclass(frozen=True)
class TagProtocol:
    """The stricter form and the default: one action a turn, and corrections that give the error."""

    prompt_format: ClassVar[PromptFormat] = PROMPT_FORMAT
    _block: ClassVar[str] = "\n<information>\n{}\n</information>\n"

    def phrase(self, task: Task) -> Task:
        """Return a task with the question as the policy reads it."""
        return task

    def parse(self, text: str) -> Parsed:
        """Parse the action of a turn. Never raises.

        After forged `<information>` blocks are cut out, a valid turn has exactly one opening tag of
        search or answer, followed by the closing tag of the same name, with text between them. Other
        text may stand before and after. Tags are matched exactly: lower case, no spaces. If a sampler
        without stop strings continues after the first closing tag, the action still counts, unless a
        second one starts: a policy that continues from results it has not seen must not be rewarded.
        """
        text = without_forged(text)
        tags = list(_CALL_TAG.finditer(text))
        error = _find_error(tags)
        if error:
            return Parsed("invalid", error=error)
        opening, closing = tags
        argument = text[opening.end() : closing.start()].strip()
        action = "search" if opening[2] == "search" else "answer"
        if not argument:
            empty = "query" if action == "search" else "answer"
            return Parsed("invalid", error=f"empty {empty}")
        return Parsed(action, argument)

    def answer(self, turn_texts: Sequence[str]) -> str | None:
        """Return the final answer in an episode's turns, or None if it has none or more than one.

        It is the answer of the only turn with `<answer>` and `</answer>` outside forged blocks, if that
        turn is valid. An episode cannot hedge with several answers; an answer that was left unclosed
        may be repeated in a later turn.
        """
        texts = [without_forged(text) for text in turn_texts]
        closed = [text for text in texts if "<answer>" in text.rpartition("</answer>")[0]]
        if len(closed) != 1:
            return None
        parsed = self.parse(closed[0])
        return parsed.argument or None if parsed.action == "answer" else None

    def correction(self, error: str) -> str:
        """Return the observation after an invalid turn; `error` as in `Parsed.error`."""
        return (
            f"\nMy previous action is invalid: {error}. To search, I write one query between <search> "
            "and </search>. To finish, I write the answer between <answer> and </answer>. "
            "One of the two in a turn. Let me try again.\n"
        )

    def information(self, passages: Sequence[str]) -> str:
        """Return the observation of a search: numbered passages between the protocol's tags.

        In a protocol tag inside a passage "<" becomes "‹", so that no text of a corpus can close the
        block and pass for the policy's own text.
        """
        body = "\n".join(f"({i}) {_escape(text)}" for i, text in enumerate(passages, 1))
        return self._block.format(body or "No document matches.")

    def failure(self) -> str:
        """Return the observation of a search that failed."""
        return self._block.format(FAILURE)


@dataclass(frozen=True)
class SearchR1Protocol(TagProtocol):
    """Search-R1's own form, as github.com/PeterGriffinJin/Search-R1 has it.

    It follows generation.py, qa_em.py and the data scripts there; docs/how-to/retrieval.md says where
    it differs on purpose: Search-R1 takes the last `<answer>` of prompt and response together, if there
    are two or more.
    """

    _block = "\n\n<information>{}</information>\n\n"
    # One user message: the instruction, a space, "Question: ", the question and a line break.
    prompt_format = PromptFormat(question_prefix="Question: ", question_suffix="\n", separator=" ")

    def phrase(self, task: Task) -> Task:
        """Return the task with a question mark at its end, as in Search-R1's data scripts.

        Of a whole prompt, which these scripts write as well, only the question counts.
        """
        text, mark, after_mark = task.question.partition(self.prompt_format.question_prefix)
        question = (after_mark if mark else text).strip()
        return replace(task, question=question if question.endswith("?") else f"{question}?")

    def parse(self, text: str) -> Parsed:
        """Parse the action of a turn: the first closing tag decides. Never raises.

        Text after that tag does not count. The argument starts at the first opening tag of the same
        name, and may be empty or hold other tags.
        """
        closing = _CLOSING.search(text)
        if closing is None:
            return Parsed("invalid", error="no action is closed")
        name = "search" if closing[1] == "search" else "answer"
        _, opening, argument = text[: closing.start()].partition(f"<{name}>")
        if not opening:
            return Parsed("invalid", error=f"stray </{name}>")
        return Parsed(name, argument.strip())

    def correction(self, error: str) -> str:
        """Return exactly the text that Search-R1's policies were trained on, which gives no error."""
        return (
            "\nMy previous action is invalid. If I want to search, I should put the query between "
            "<search> and </search>. If I want to give the final answer, I should put the answer "
            "between <answer> and </answer>. Let me try again.\n"
        )

    def information(self, passages: Sequence[str]) -> str:
        """Return the observation of a search: `Doc 1(Title: "Oslo") …`, one passage a line.

        A passage is `(Title: "Oslo") …`; an empty title is added if there is none.
        """
        titled = [p if p.startswith("(Title: ") else f"(Title: ) {p}" for p in passages]
        body = "\n".join(f"Doc {i}{_escape(passage)}" for i, passage in enumerate(titled, 1))
        return self._block.format(body.strip())


TAGS = TagProtocol()
SEARCH_R1 = SearchR1Protocol()


def without_forged(text: str) -> str:
    """Cut `<information>` blocks out of a turn, nested ones included, unclosed ones to its end.

    A line break takes the place of each, so that the two sides cannot join to form a tag.
    """
    parts: list[str] = []
    depth = 0
    start = 0
    for tag in _INFORMATION_TAG.finditer(text):
        if depth == 0:
            parts.append(text[start : tag.start()])
        depth = max(depth - 1, 0) if tag[1] else depth + 1
        start = tag.end()
    if depth == 0:
        parts.append(text[start:])
    return "\n".join(parts)


def _find_error(tags: Sequence[re.Match[str]]) -> str:
    """Return why tags are not one opening and its closing tag; "" if they are."""
    names = {tag[2] for tag in tags}
    if not names:
        return "no <search> or <answer> tag"
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


def _escape(passage: str) -> str:
    """Return a passage with its protocol tags made harmless."""
    return _FOREIGN_TAG.sub("‹", passage)
