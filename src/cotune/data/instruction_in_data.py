"""Where the initial instruction stands in a data set in TRL's form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.data.cells import shorten
from cotune.data.trl_data import find_holders, last_question, messages_of
from cotune.errors import ConfigError

Messages = Sequence[dict[str, Any]]
"""Chat messages."""


@dataclass(frozen=True)
class InstructionPlace:
    """The initial instruction and its place in the data.

    Attributes:
        initial: the initial instruction; "" without one.
        text: the text of the prompts that it stands for; "" if it is added to them.
    """

    initial: str = ""
    text: str = ""


def place_instruction(
    rows: Sequence[Mapping[str, Any]],
    instruction: str | None,
    needs_instruction: bool,
    method_name: str,
) -> InstructionPlace:
    """Find the initial instruction of a run and the text of the data that it stands for.

    It is, in this order: `instruction`, in its place if all prompts have it, else added; the system
    message of all rows; the prompt of all rows, if they have the same (an environment makes the
    tasks); none.

    Args:
        rows: all rows that are trained or evaluated on, as `read_rows` returns them.
        instruction: the method's argument; None if the data has it.
        needs_instruction: whether the method evolves it.
        method_name: such as "INSPO", for messages.

    Raises:
        ConfigError: the instruction stands in some prompts only, rows have different system
            messages, or there is no instruction to evolve.
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


def _find_place(instruction: str, prompts: Sequence[Messages], argument: str) -> InstructionPlace:
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
    prompts: Sequence[Messages], needs_instruction: bool, argument: str
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
