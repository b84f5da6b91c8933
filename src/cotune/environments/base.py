"""The base of environments: tasks by split, the layout of a prompt, and their description for proposers."""

import copy
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from cotune.data.splits import SPLITS
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.types import Action, Prompt, Response, Section, Task, Trajectory
from cotune.utils.text import without_thoughts


@dataclass(frozen=True, kw_only=True)
class PromptFormat(Section):
    """The position of an instruction in the chat messages of a task.

    Attributes:
        role: "user" puts it into the user's message, "system" into the system message.
        placement: before or after the question, in the first message of the user.
        system: "keep" the data's system prompt (with `role: system` the instruction follows it) or
            "replace" it with the instruction (with `role: user` it is dropped).
        question_prefix, question_suffix: texts before and after the question.
        separator: text between instruction and question in the user's message.
    """

    role: Literal["user", "system"] = "user"
    placement: Literal["before", "after"] = "before"
    system: Literal["keep", "replace"] = "keep"
    question_prefix: str = ""
    question_suffix: str = ""
    separator: str = "\n\n"

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """Return the system prompt, the data's messages before the question, and the user's message.

        An instruction for the user stands in the conversation's first user message, as a served chat
        template has it, where later turns follow. The hint, if any, is put before the question (P²O's T).
        """
        messages = [{"role": role, "content": content} for role, content in task.context]
        messages.append({"role": "user", "content": task.question})
        if self.system == "replace":
            messages = [message for message in messages if message["role"] != "system"]
        first = next(message for message in messages if message["role"] == "user")
        parts = [f"{self.question_prefix}{first['content']}{self.question_suffix}"]
        if self.role == "user":
            parts.insert(0 if self.placement == "before" else 1, prompt.instruction)
        first["content"] = self.separator.join(part for part in parts if part)
        messages[-1]["content"] = prompt.under_hint(messages[-1]["content"])
        return with_system(messages, prompt.instruction) if self.role == "system" else messages

    @property
    def places(self) -> dict[str, str]:
        """Return the fields of a run file's `instruction` that say the same."""
        places = {"role": self.role, "system": self.system, "separator": self.separator}
        return places | ({"placement": self.placement} if self.role == "user" else {})

    def question_messages(self, task: Task) -> list[dict[str, Any]]:
        """Return the messages that a client of the served policy sends: those before the question, and it."""
        before = [{"role": role, "content": content} for role, content in task.context]
        return [*before, {"role": "user", "content": task.question}]

    def served(self, tasks: Sequence[Task], instruction: str) -> "PromptFormat | None":
        """Return how a chat template lays out an instruction and the messages of all tasks; None if it cannot."""
        return self


def with_system(messages: list[dict[str, Any]], instruction: str) -> list[dict[str, Any]]:
    """Append an instruction to the system prompt of messages, or add it as the system prompt."""
    if not instruction:
        return messages
    if messages and messages[0]["role"] == "system":
        instruction = f"{messages[0]['content']}\n\n{instruction}"
        messages = messages[1:]
    return [{"role": "system", "content": instruction}, *messages]


class TaskEnvironment:
    """Tasks by split and a prompt format; a subclass responds and, without reward functions, scores.

    Args:
        tasks: the tasks of each split; "train", "validation" and "test" are used.
        initial_instruction: the instruction that training starts from.

    Attributes:
        stop, required, tools: see `protocols.Environment`.
        prompt_format: the layout of a prompt; a run file's `instruction` section replaces parts.
        needs_rewards: whether reward functions are required, because `score` returns no reward.
        no_answer: what is wrong with a turn in which `read_answer` finds none; "" accepts every turn.
        takes_any_tasks: whether it can score other tasks than its own, such as a benchmark's.
        parallel_responses: how many calls of `respond` may run at the same time, in threads of their own. 0: none,
            so that all episodes wait for the longest turn and the slowest response. A subclass whose `respond` must
            not run in threads sets it to 0.
        description: the environment, described to the LLM that proposes; None: its tools, "": nothing.

    Raises:
        ConfigError: a task id is repeated in a split.
    """

    stop: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    needs_rewards: bool = False
    no_answer: str = ""
    takes_any_tasks: bool = True
    parallel_responses: int = 0
    description: str | None = None

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str,
        prompt_format: PromptFormat | None = None,
    ) -> None:
        self._tasks = _by_split(tasks)
        self.initial_instruction = initial_instruction
        self.prompt_format = prompt_format or PromptFormat()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, in a fixed order; ConfigError for an unknown split."""
        if split in ("train", "validation", "test"):
            return self._tasks.get(split, ())
        if split not in self._tasks:
            raise ConfigError(f"split is {split!r}; expected one of {', '.join(self._tasks)}")
        return self._tasks[split]

    def with_tasks(self, tasks: Mapping[str, Sequence[Task]]) -> Self:
        """Return the same environment, with its tools and scoring, over other tasks, under any names of splits."""
        other = copy.copy(self)
        other._tasks = _by_split(tasks)
        return other

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """Return the chat messages of a task under a prompt, laid out by `prompt_format`."""
        return self.prompt_format.messages(task, prompt)

    def question_messages(self, task: Task) -> list[dict[str, Any]]:
        """Return the messages of a task without an instruction, as a client of the served policy sends them."""
        return self.prompt_format.question_messages(task)

    def served_format(self, instruction: str) -> PromptFormat | None:
        """Return how a chat template lays out an instruction and these messages; None if no template can."""
        return self.prompt_format.served([t for s in SPLITS for t in self.tasks(s)], instruction)

    def read_answer(self, text: str) -> str | None:
        """Return the answer in the policy's text without its thoughts, here all of it; None: there is none."""
        return text.strip() or None

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """End every episode after one turn, which is invalid if it must hold an answer and does not."""
        return [
            Response(done=True, action="invalid", error=self.no_answer)
            if self.no_answer and self.read_answer(without_thoughts(action.text)) is None
            else Response(done=True, action="answer")
            for action in actions
        ]

    def answer_of(self, trajectory: Trajectory) -> str | None:
        """Return the answer in the last turn, outside its thoughts in <think>; None if there is none."""
        text = trajectory.turns[-1].text if trajectory.turns else ""
        return self.read_answer(without_thoughts(text))

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return reward 0 and the last turn's answer, which reward functions score."""
        return 0.0, self.answer_of(trajectory)


def _by_split(tasks: Mapping[str, Sequence[Task]]) -> dict[str, tuple[Task, ...]]:
    for split, rows in tasks.items():
        repeated = [id for id, n in Counter(task.id for task in rows).items() if n > 1]
        if repeated:
            raise ConfigError(
                f"{split} has several tasks with the id {repeated[0]!r}; expected each id once: correct the data, "
                "or name another column in dataset.columns.id (null: a hash of the question)"
            )
    return {split: tuple(rows) for split, rows in tasks.items()}


class SingleTurnEnvironment(TaskEnvironment):
    """Questions answered in one turn, scored by reward functions."""

    needs_rewards = True


def without_answer(task: Task, other: str = "") -> ConfigError:
    """Return the error for a task without a reference answer; `other` names another way to give one."""
    return ConfigError(
        f"dataset: the question {task.id} has no answer; expected one: name its column in "
        f"dataset.columns: {{answers: …}}{other}"
    )


DESCRIPTION_CHARS = 4000
"""The most characters that a proposer is shown."""

_CALLS = (
    "The agent calls these tools in the form that its chat template shows it; several calls in a turn are allowed, "
    "and what they return comes before its next turn. A turn without a call is its final answer."
)


def description_of(environment: Environment) -> str:
    """Return an environment's own `description`, else that of its tools, "" without; cut at DESCRIPTION_CHARS."""
    description: str | None = getattr(environment, "description", None)
    text = _describe_tools(environment.tools) if description is None else description.strip()
    return text if len(text) <= DESCRIPTION_CHARS else f"{text[: DESCRIPTION_CHARS - 2].rstrip()} …"


def _describe_tools(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return the JSON schemas of tools, one a line."""
    functions = [
        json.dumps(schema.get("function", schema), ensure_ascii=False) for schema in schemas
    ]
    return "\n".join([_CALLS, *functions]) if functions else ""
