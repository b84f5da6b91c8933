"""What can be found wrong before anything is trained or written."""

from collections.abc import Iterable

from cotune.contracts import Codec, ConfigError, Environment
from cotune.environments.math import MathEnvironment, missing_box
from cotune.environments.search import SearchEnvironment
from cotune.environments.tag_protocol import missing_tags
from cotune.records import Limits, Prompt, Task

_RENDERED = 16  # tasks with the longest questions, of each split


def evolved_room(limits: Limits, strategy: str) -> int:
    """Tokens that an evolved text may have: half of a prompt's, a quarter where there are two.

    The other half is the question's, the chat template's, and what does not evolve.
    """
    return limits.prompt_tokens // (4 if strategy == "inspo+p2o" else 2)


def check_instruction(environment: Environment, instruction: str) -> None:
    """Raises ConfigError for an instruction under which no policy can act."""
    if not instruction.strip():
        raise ConfigError("instruction is blank; expected a text that says what to do")
    missing = ""
    if isinstance(environment, SearchEnvironment):
        missing = missing_tags(instruction)
    if isinstance(environment, MathEnvironment):
        missing = missing_box(instruction)
    if missing:
        raise ConfigError(f"instruction {missing}")


def check_prompts(
    environment: Environment,
    codec: Codec,
    instruction: str,
    limits: Limits,
    splits: Iterable[str],
    *,
    strategy: str,
) -> None:
    """Raises ConfigError where the longest prompts of some splits are longer than the limit.

    Args:
        instruction: the initial one.
        splits: what to look at; of each the tasks with the longest questions.
        strategy: its kind; texts that it evolves may take half of the limit.
    """
    tasks = [task for split in splits for task in _longest(environment.tasks(split))]
    for task in tasks:
        found = _prompt_tokens(environment, codec, task, instruction)
        if found > limits.prompt_tokens:
            raise ConfigError(
                f"limits.prompt_tokens is {limits.prompt_tokens}, but the prompt of task {task.id} "
                f"has {found} tokens; raise it or shorten the instruction"
            )
        if strategy == "static":
            continue
        room = evolved_room(limits, strategy)
        if strategy == "inspo+p2o" and found + room > limits.prompt_tokens:
            raise ConfigError(
                f"limits.prompt_tokens is {limits.prompt_tokens}, a quarter of which is left for "
                f"hints, but the prompt of task {task.id} under the initial instruction has {found} "
                "tokens; raise it or shorten the instruction"
            )
        kept = instruction if strategy == "p2o" else ""
        rest = _prompt_tokens(environment, codec, task, kept)
        if 2 * rest > limits.prompt_tokens:
            raise ConfigError(
                f"limits.prompt_tokens is {limits.prompt_tokens}, half of which is left for evolved "
                f"{'hints' if kept else 'instructions'}, but without any the prompt of task "
                f"{task.id} has {rest} tokens; expected at least {2 * rest}"
            )


def check_context(context_tokens: int | None, limits: Limits) -> None:
    """Raises ConfigError where a full episode is longer than what the policy can attend to.

    Args:
        context_tokens: the policy's; None where it has no bound.
    """
    asked = limits.prompt_tokens + limits.trajectory_tokens
    if context_tokens is not None and asked > context_tokens:
        raise ConfigError(
            f"limits.prompt_tokens + limits.trajectory_tokens is {limits.prompt_tokens} + "
            f"{limits.trajectory_tokens} = {asked}, but the policy's context holds "
            f"{context_tokens} tokens; lower one of the two"
        )


def _prompt_tokens(environment: Environment, codec: Codec, task: Task, instruction: str) -> int:
    return len(codec.render(environment.messages(task, Prompt(instruction))))


def _longest(tasks: Iterable[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: -len(task.question))[:_RENDERED]
