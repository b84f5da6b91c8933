"""The stricter form of the search tags, which the policies of geo and scaffold were taught.

One action a turn, and corrections that give the error.
"""

import re
from collections.abc import Sequence

from cotune import PromptFormat, Task
from cotune.environments.search import Parsed, TagProtocol, escape, without_forged

_CALL_TAG = re.compile(r"<(/?)(search|answer)>")


class StrictTags(TagProtocol):
    """Search-R1's tags, read more strictly than Search-R1 reads them."""

    prompt_format = PromptFormat(question_prefix="Question: ")
    block = "\n<information>\n{}\n</information>\n"

    def phrase(self, task: Task) -> Task:
        """Return the task as it is."""
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
        body = "\n".join(f"({i}) {escape(text)}" for i, text in enumerate(passages, 1))
        return self.block.format(body or "No document matches.")


TAGS = StrictTags()


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
