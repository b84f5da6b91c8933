"""The prompts of a data set in TRL's form, with an instruction in the place where the data has it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.data.trl_data import find_holders, last_question, messages_of, question_of
from cotune.environments.base import PromptFormat, with_system
from cotune.types import Prompt, Task


@dataclass(frozen=True, kw_only=True)
class PromptInData(PromptFormat):
    """Puts an instruction where the data has the initial one, and leaves the rest of a row as it is.

    Under the initial instruction, and without a hint, a prompt is the data's own, as TRL trains on it.
    Without a place in the data the instruction becomes the system message, after the row's own; a
    plain text follows it after a blank line.

    Attributes:
        text: the initial instruction as the prompts have it; "" if it is added to them.
    """

    text: str = ""

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, Any]]:
        if not task.chat:
            return [{"role": "user", "content": self._plain(task.columns["prompt"], prompt)}]
        messages = messages_of(task.columns)
        # A TRL environment's reset() adds to the question; TRL puts that after the last message.
        messages[-1]["content"] += task.question.removeprefix(question_of(messages, self.text))
        places = find_holders(messages, self.text)
        for message in places:
            message["content"] = self._replace_text(message["content"], prompt.instruction)
        if not places:
            messages = with_system(messages, prompt.instruction)
        question = last_question(messages)
        question["content"] = prompt.under_hint(question["content"])
        return messages

    def _replace_text(self, content: str, instruction: str) -> str:
        """Put an instruction in the place of the text; a line break keeps another one from what follows."""
        if instruction == self.text:
            return content
        apart = re.sub(re.escape(self.text) + r"(?=\S)", lambda _: f"{self.text}\n", content)
        return apart.replace(self.text, instruction)

    def _plain(self, text: str, prompt: Prompt) -> str:
        """Put an instruction into a plain text, and a hint after it: markup may stand before both."""
        if not self.text or self.text not in text:
            return prompt.under_hint("\n\n".join(filter(None, (prompt.instruction, text))))
        hinted = "\n\n".join(filter(None, (prompt.instruction, prompt.hint.strip())))
        return text.replace(self.text, hinted)


def served_format(
    rows: Sequence[Mapping[str, Any]], text: str, instruction: str = ""
) -> PromptFormat | None:
    """Return where a chat template puts an instruction so that a question is rendered as in training.

    Args:
        rows: the data's rows.
        text: the initial instruction as the prompts have it; "" if it is added to them.
        instruction: the one that the template gets.

    Returns:
        None if no template can: prompts are plain texts, or the instruction stands within them.
    """
    if any(isinstance(row.get("prompt"), str) for row in rows):
        return None
    if not text:
        return PromptFormat(role="system", system="keep")
    prompts = [messages_of(row) for row in rows]
    systems = [[m["content"] for m in messages if m["role"] == "system"] for messages in prompts]
    if all(contents == [text] for contents in systems):
        return PromptFormat(role="system", system="replace")
    questions = [_find_question(messages, text) for messages in prompts]
    if all(question.startswith(text) for question in questions):
        direct = "" if instruction == text else "\n"
        remainders = [question.removeprefix(text) for question in questions]
        separators = {r[: len(r) - len(r.lstrip())] or direct for r in remainders}
        return PromptFormat(separator=separators.pop()) if len(separators) == 1 else None
    if all(question.endswith(text) for question in questions):
        remainders = [question.removesuffix(text) for question in questions]
        separators = {r[len(r.rstrip()) :] for r in remainders}
        if len(separators) == 1:
            return PromptFormat(placement="after", separator=separators.pop())
    return None


def _find_question(messages: Sequence[dict[str, Any]], text: str) -> str:
    """Return the only question of a prompt if the text stands in it once and nowhere else, else ""."""
    of_user = [message for message in messages if message["role"] == "user"]
    if len(of_user) != 1 or find_holders(messages, text) != of_user:
        return ""
    content = of_user[0]["content"]
    return content if content.count(text) == 1 else ""
