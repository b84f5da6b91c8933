"""The tokens of prompts: what `limits.prompt_tokens` must be, and the questions that exceed it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest

from cotune.data.splits import SPLITS, warn
from cotune.environments.base import TaskEnvironment
from cotune.methods.registry import method_of
from cotune.protocols import Codec, Environment
from cotune.types import Prompt, Task

_CANDIDATES = 16  # tasks of a split that may have the longest prompt
_PIECE = re.compile(r"[A-Za-z]{1,8}|\S")  # about a token: digits and other scripts have more
_PER_MESSAGE = 16  # tokens that a chat template adds to a message, generously


@dataclass(frozen=True, slots=True)
class PromptLength:
    """The tokens of one task's prompt.

    Attributes:
        task: the task.
        tokens: under the initial instruction.
        needed: the least `limits.prompt_tokens` that holds it, with room for evolved texts.
    """

    task: Task
    tokens: int
    needed: int


def prompt_length(
    environment: Environment, codec: Codec, task: Task, instruction: str, strategy: str
) -> PromptLength:
    """Measure a task's prompt.

    Half of the limit is for the text that a strategy of this kind evolves.
    """
    tokens = _tokens(environment, codec, task, instruction)
    evolves = method_of(strategy).evolves
    if evolves is None:
        return PromptLength(task, tokens, tokens)
    unevolved = "" if evolves == "instruction" else instruction
    fixed = _tokens(environment, codec, task, unevolved)
    return PromptLength(task, tokens, max(tokens, 2 * fixed))


def longest_prompt(
    environment: Environment,
    codec: Codec,
    instruction: str,
    splits: Iterable[str],
    strategy: str,
) -> PromptLength | None:
    """Return the prompt that needs the highest limit; None without tasks.

    Of each split only those with the longest texts are tokenized.
    """
    tasks = [
        task
        for split in splits
        for task in nlargest(_CANDIDATES, environment.tasks(split), key=_estimate_tokens)
    ]
    lengths = [prompt_length(environment, codec, task, instruction, strategy) for task in tasks]
    return max(lengths, key=lambda length: length.needed, default=None)


def without_too_long(
    environment: TaskEnvironment,
    codec: Codec,
    instruction: str,
    limit: int,
    strategy: str,
) -> TaskEnvironment:
    """Return the environment without the tasks whose prompts need more than `limit` tokens.

    Logs how many of each split are left out.
    """
    fitting: dict[str, list[Task]] = {}
    for split in SPLITS:
        tasks = environment.tasks(split)
        fitting[split] = [
            task
            for task in tasks
            if prompt_length(environment, codec, task, instruction, strategy).needed <= limit
        ]
        if left := len(tasks) - len(fitting[split]):
            warn(
                f"dataset.drop_too_long: {left} of {len(tasks)} {split} questions are left out; "
                f"their prompts need more than limits.prompt_tokens {limit}"
            )
    return environment.with_tasks(fitting)


def _tokens(environment: Environment, codec: Codec, task: Task, instruction: str) -> int:
    messages = environment.messages(task, Prompt(instruction))
    return len(codec.render(messages, environment.tools))


def _estimate_tokens(task: Task) -> int:
    texts = [task.question, *(content for _, content in task.context)]
    return sum(len(_PIECE.findall(text)) + _PER_MESSAGE for text in texts)
