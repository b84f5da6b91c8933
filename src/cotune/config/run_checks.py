"""Check a run's parts without an engine; `cotune.engines.preflight` and scripts run the checks in order."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import nlargest

from cotune.data.splits import SPLITS, warn
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError
from cotune.methods.method import MethodOptions, RunShape
from cotune.methods.registry import method_of
from cotune.protocols import Codec, Environment
from cotune.rewards.functions import RewardFunctions, of_environment
from cotune.types import Limits, Prompt, Task
from cotune.utils.progress import begin


def check_instruction(environment: Environment, instruction: str, strategy: str = "static") -> None:
    """Raise ConfigError if no policy can act under the initial instruction, or a strategy of this kind evolve it."""
    method = method_of(strategy)
    if method.evolves == "instruction" and not instruction.strip():
        raise ConfigError(
            f"instruction: blank; {method.label} evolves it: say in a sentence or two what the "
            "policy is to do"
        )
    for name in ("stop", "required"):
        if isinstance(texts := getattr(environment, name), str):
            raise ConfigError(
                f"environment: {type(environment).__name__}.{name} is the text {texts!r}; expected a tuple "
                f"of texts: write ({texts!r},), with a comma"
            )
    # A policy that is not shown a tag cannot write it, and no proposer could bring it back.
    if missing := [text for text in environment.required if text not in instruction]:
        raise ConfigError(
            f"instruction names no {', '.join(missing)}; expected {', '.join(environment.required)} in its text: "
            "add what is missing"
        )


def check_splits(environment: Environment, *, validates: bool) -> None:
    """Raise ConfigError if a split that a run needs has no questions.

    Args:
        validates: whether the run is also evaluated on the validation split.
    """
    for split in ("train", "validation", "test") if validates else ("train", "test"):
        if not environment.tasks(split):
            instead = ", or set evaluation.every to 0" if split == "validation" else ""
            raise ConfigError(
                f"environment: the {split} split has no questions; expected at least one: hold some "
                f"out, or give it data of its own{instead}"
            )


def check_columns(
    rewards: RewardFunctions | None, environment: Environment, splits: Iterable[str]
) -> None:
    """Check without a call that reward functions get what they need.

    Raises ConfigError: a function needs a column that the data lacks; or there is none, and the environment gives no
    reward.
    """
    if rewards is None:
        if getattr(environment, "needs_rewards", False):
            raise ConfigError(
                f"rewards: missing; {type(environment).__name__} gives none: name reward functions "
                "such as my_package.rewards:exact, or exact_match"
            )
        return
    for split in splits:
        also = list(of_environment(environment, ()))
        if tasks := environment.tasks(split):  # a run without validation may have none there
            rewards.check_tasks(tasks, split, also)


def check_retriever(environment: Environment) -> None:
    """Request a passage from a retrieval server, so that a wrong address is found early.

    Raises ConfigError: the environment's search server gives no usable reply.
    """
    check = getattr(getattr(environment, "retriever", None), "check", None)
    if check is not None:
        begin("asking the retrieval server")
        check()


def shape_notices(options: MethodOptions, shape: RunShape) -> Iterator[str]:
    """Yield notices about sizes under which a run cannot do what it is for."""
    method = method_of(options.kind)
    # No batch is rolled out.
    if shape.frozen and not method.uses_batches:
        return
    size = shape.questions_per_step
    if size > shape.questions:
        yield (
            f"a step takes {size} questions and there are {shape.questions}, so some come more than once; take fewer, "
            "or add questions"
        )
    if shape.rollout_budget is not None:
        steps = min(shape.steps, shape.rollout_budget // (size * shape.group_size))
        shape = replace(shape, steps=steps)
    if (schedule := method.schedule(options)) and not method.cost(options, shape).phases:
        yield (
            f"{method.label} has no phase of evolution in this run (steps: {shape.steps}, questions: "
            f"{shape.questions}); {schedule}"
        )


def check_prompts(
    environment: Environment,
    codec: Codec,
    instruction: str,
    limits: Limits,
    splits: Iterable[str],
    *,
    strategy: str,
    context_tokens: int | None = None,
) -> None:
    """Raise ConfigError if prompts cannot be put to the policy whole.

    The instruction spells out a control token, which would stay text; a full episode is longer than the policy's
    context; or the longest prompts of some splits exceed the limit. The message then names the limit to set, room for
    evolved texts included.

    Args:
        strategy: the kind of strategy; texts that it evolves may take half of the limit.
        context_tokens: the policy's context length; None if unlimited.
    """
    if spelled := [token for token in getattr(codec, "control_tokens", ()) if token in instruction]:
        raise ConfigError(
            f"instruction spells out {', '.join(spelled)}, control tokens of the policy; the policy "
            "would see a different text instead: remove them"
        )
    limit = limits.prompt_tokens
    room = None if context_tokens is None else context_tokens - limits.trajectory_tokens
    if room is not None and limit > room:
        raise ConfigError(
            f"limits.prompt_tokens + limits.trajectory_tokens is {limit} + {limits.trajectory_tokens} = "
            f"{limit + limits.trajectory_tokens}, but the policy's context holds {context_tokens} tokens; "
            "lower one of the two (in a script, GRPOConfig.max_completion_length, or limits=)"
        )
    # Of each split only the longest texts are tokenized.
    lengths = [
        (*_prompt_length(environment, codec, task, instruction, strategy), task)
        for split in splits
        for task in nlargest(_CANDIDATES, environment.tasks(split), key=_estimate_tokens)
    ]
    tokens, needed, task = max(lengths, key=lambda length: length[1], default=(0, 0, None))
    if task is None or needed <= limit:
        return
    half = ", half of which is left for what evolves" if method_of(strategy).evolves else ""
    fix = f"raise it to {needed}"
    if room is not None and needed > room:
        fix = (
            "lower limits.trajectory_tokens (in a script, GRPOConfig.max_completion_length), as the policy's context "
            f"holds {context_tokens}"
        )
    if context_tokens is not None and needed > context_tokens:
        fix = f"choose a policy whose context holds more than {context_tokens}"
    raise ConfigError(
        f"limits.prompt_tokens is {limit}{half}, but the prompt of task {task.id} has {tokens} tokens; expected at "
        f"least {needed}: {fix}, shorten the instruction, or leave long questions out (in a run file, "
        "dataset.drop_too_long: true)"
    )


# ---- the tokens of prompts

_CANDIDATES = 16  # tasks of a split that may have the longest prompt
_PIECE = re.compile(r"[A-Za-z]{1,8}|\S")  # about a token: digits and other scripts have more
_PER_MESSAGE = 16  # tokens that a chat template adds to a message, generously


def _prompt_length(
    environment: Environment, codec: Codec, task: Task, instruction: str, strategy: str
) -> tuple[int, int]:
    """Return the tokens of a task's prompt, and the least `limits.prompt_tokens` that holds it.

    Half of the limit is for the text that a strategy of this kind evolves.
    """

    def count(text: str) -> int:
        messages = environment.messages(task, Prompt(text))
        return len(codec.render(messages, environment.tools))

    tokens = count(instruction)
    evolves = method_of(strategy).evolves
    if evolves is None:
        return tokens, tokens
    return tokens, max(tokens, 2 * count("" if evolves == "instruction" else instruction))


def _estimate_tokens(task: Task) -> int:
    texts = [task.question, *(content for _, content in task.context)]
    return sum(len(_PIECE.findall(text)) + _PER_MESSAGE for text in texts)


def without_too_long(
    environment: TaskEnvironment, codec: Codec, instruction: str, limit: int, strategy: str
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
            if _prompt_length(environment, codec, task, instruction, strategy)[1] <= limit
        ]
        if left := len(tasks) - len(fitting[split]):
            warn(
                f"dataset.drop_too_long: {left} of {len(tasks)} {split} questions are left out; "
                f"their prompts need more than limits.prompt_tokens {limit}"
            )
    return environment.with_tasks(fitting)
