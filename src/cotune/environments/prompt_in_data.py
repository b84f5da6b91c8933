"""The prompts of a data set in TRL's form: where they have the initial instruction, and another one put there."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.data.trl_data import find_holders, last_question, messages_of, question_of
from cotune.environments.base import PromptFormat, with_system
from cotune.errors import ConfigError
from cotune.types import Prompt, Task
from cotune.utils.text import shorten


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
        messages = self._data_messages(task)
        places = find_holders(messages, self.text)
        for message in places:
            message["content"] = self._replace_text(message["content"], prompt.instruction)
        if not places:
            messages = with_system(messages, prompt.instruction)
        question = last_question(messages)
        question["content"] = prompt.under_hint(question["content"])
        return messages

    def question_messages(self, task: Task) -> list[dict[str, Any]]:
        """See `PromptFormat`; white space around the instruction goes with it."""
        messages = self._data_messages(task)
        for message in find_holders(messages, self.text):
            before, _, after = message["content"].partition(self.text)
            message["content"] = before.rstrip() + after.lstrip()
        return [message for message in messages if message["content"] or message["role"] == "user"]

    def served(self, tasks: Sequence[Task], instruction: str) -> PromptFormat | None:
        """See `PromptFormat`; no template can if prompts are plain texts or the instruction stands within them."""
        text = self.text
        if not all(task.chat for task in tasks):
            return None
        if not text:
            return PromptFormat(role="system", system="keep")
        prompts = [self._data_messages(task) for task in tasks]
        systems = [[m["content"] for m in prompt if m["role"] == "system"] for prompt in prompts]
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

    def _data_messages(self, task: Task) -> list[dict[str, Any]]:
        """Return the row's messages; a TRL environment's reset() adds to the last one, as in TRL."""
        messages = messages_of(task.columns)
        messages[-1]["content"] += task.question.removeprefix(question_of(messages, self.text))
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


def _find_question(messages: Sequence[dict[str, Any]], text: str) -> str:
    """Return the only question of a prompt if the text stands in it once and nowhere else, else ""."""
    of_user = [message for message in messages if message["role"] == "user"]
    if len(of_user) != 1 or find_holders(messages, text) != of_user:
        return ""
    content = of_user[0]["content"]
    return content if content.count(text) == 1 else ""


@dataclass(frozen=True)
class InstructionPlace:
    """The initial instruction, "" without one, and the text of the prompts that it stands for, "" if it is added."""

    initial: str = ""
    text: str = ""


def place_instruction(
    rows: Sequence[Mapping[str, Any]],
    instruction: str | None,
    needs_instruction: bool,
    method_name: str,
) -> InstructionPlace:
    """Find the initial instruction of a run and the text of the data that it stands for.

    It is, in this order: `instruction`, in its place if all prompts have it, else added; the system message of all
    rows; the prompt of all rows, if they have the same (an environment makes the tasks); none.

    Args:
        rows: all rows that are trained or evaluated on, as `read_rows` returns them.
        instruction: the method's argument; None if the data has it.
        needs_instruction: whether the method evolves it.

    Raises:
        ConfigError: the instruction stands in some prompts only, rows have different system messages, or there is no
            instruction to evolve.
    """
    prompts = [messages_of(row) for row in rows if "prompt" in row]
    argument = f"method=cotune.{method_name}(instruction=…)"
    if instruction is None:
        place = _find_shared(prompts, needs_instruction, argument)
    else:
        place = _find_place(instruction, prompts, argument)
    if needs_instruction and not place.initial.strip():
        raise ConfigError(
            f"method: {method_name} evolves an instruction, and the prompts share no system message; "
            f"give one as {argument}"
        )
    return place


def _find_place(
    instruction: str, prompts: Sequence[Sequence[dict[str, Any]]], argument: str
) -> InstructionPlace:
    """Return the place of the method's instruction, which may have white space around it."""
    for text in (instruction.rstrip(), instruction.strip()):
        without = [messages for messages in prompts if not find_holders(messages, text)]
        if not without:
            return InstructionPlace(text, text)
        if len(without) < len(prompts):
            raise ConfigError(
                f"{argument}: {len(without)} of {len(prompts)} prompts lack that text, such as "
                f"{shorten(last_question(without[0])['content'])}; expected it in all of them or "
                "in none: write it into every prompt, or leave it out and it is added"
            )
    return InstructionPlace(instruction)


def _find_shared(
    prompts: Sequence[Sequence[dict[str, Any]]], needs_instruction: bool, argument: str
) -> InstructionPlace:
    """Return the system message, or else the whole question, that all prompts share."""
    systems: dict[str, None] = {}
    for messages in prompts:
        contents = (message["content"] for message in messages if message["role"] == "system")
        systems[next(contents, "")] = None
    if len(systems) > 1 and needs_instruction:
        first, second = [shorten(text) if text else "none" for text in systems][:2]
        raise ConfigError(
            f"the data has {len(systems)} different system messages, such as {first} and {second}; "
            f"expected one that all rows share, as one instruction is evolved: give {argument}, a text "
            "that all prompts have or one to add to each"
        )
    text = next(iter(systems), "") if len(systems) == 1 else ""
    if not text and len(prompts) > 1 and all(messages == prompts[0] for messages in prompts):
        text = last_question(prompts[0])["content"].rstrip()
    return InstructionPlace(text, text)
