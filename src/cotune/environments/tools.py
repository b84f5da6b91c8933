"""Typed Python functions as tools: their schemas, the calls of a turn, and the environment.

Tools are called, and their results shown, as `GRPOTrainer(tools=…)` of TRL does. A turn without calls is
the answer. A call that fails (no such tool, arguments that do not fit, an exception, a timeout) is an
observation that says so, so that the policy can learn from it.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import Field

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.environments.tool_runner import Job, ToolRunner
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Trajectory
from cotune.utils.background import Worker
from cotune.utils.importing import import_object
from cotune.utils.text import message_of, one_line, without_thoughts
from cotune.utils.validation import Model

INITIAL_INSTRUCTION = "Answer the question. Call the tools where they help."
CONCURRENCY = 32  # calls that run at the same time, per process
OUT_OF_TURNS = "calls a tool in its last turn"
TIMED_OUT = "took too long"
NO_SUCH_TOOL = "no such tool"
_ERROR_CHARS = 120  # of a turn's error


class ToolsOptions(Model):
    """Your own functions as tools, called through the policy's chat template."""

    kind: Literal["tools"] = "tools"
    tools: tuple[str, ...] = Field(min_length=1)
    """`package.module:name` or `file.py:name` of typed functions with docstrings."""
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call.

    Attributes:
        name: the name in calls.
        schema: its JSON schema for chat templates: {"type": "function", "function": …}.
        function: the function, sync or async.
        seconds: the timeout of a call.
        worker: the thread it is called in; None for a new one each time.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    seconds: float
    worker: Worker | None = None


class ToolEnvironment(TaskEnvironment):
    """Questions that the policy answers by calling your functions; reward functions score.

    The policy reads names, types and docstrings of the functions through its chat template, and
    calls them in the template's own form, one or more in a turn. A turn without a call is
    the answer; `answer` is its text without thoughts. Calls of all episodes run at the same time,
    so a function with state must be thread-safe.

    Args:
        tools: functions with types and Google-style docstrings, sync or async. Arguments are those
            that the policy wrote; results are shown by `str`, exceptions as `{'error': …}`, those of
            async functions last.
        tasks: the tasks of each split: "train", "validation", "test".
        initial_instruction: the instruction that training starts from.
        prompt_format: the layout of a prompt.
        seconds: the timeout of a call. A sync function cannot be stopped: it continues in its
            thread, and its result is dropped. Without a timeout (`math.inf`) sync functions are called
            one after the other in the caller's thread, as TRL does.

    Raises:
        ConfigError: a function has no types or docstring, or two have the same name; names tool
            and parameter.
    """

    needs_rewards = True
    parallel_responses = CONCURRENCY

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]],
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str = INITIAL_INSTRUCTION,
        prompt_format: PromptFormat | None = None,
        *,
        seconds: float = 30.0,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        if callable(tools) or not tools:
            value = "a function" if tools else "empty"
            raise ConfigError(f"tools is {value}; expected a list of one function or more")
        self._tools = tuple(tool_of(function, seconds) for function in tools)
        # Without a timeout, sync functions run in the thread that trains, where no event loop may run:
        # a function may start one.
        if seconds == math.inf and not all(map(inspect.iscoroutinefunction, tools)):
            self.parallel_responses = 0
        names = [tool.name for tool in self._tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"tools: two are called {twice[0]}; rename one of them")
        self.tools = tuple(tool.schema for tool in self._tools)
        self._runner = ToolRunner(CONCURRENCY)

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Make the calls of all episodes at the same time; return responses in order."""
        return call_tools(actions, lambda _: self._tools, self._runner)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return reward 0, and as the answer the last turn without its thoughts."""
        return 0.0, answer_of(trajectory)


def answer_of(trajectory: Trajectory) -> str | None:
    """Return the last turn without its thoughts; None if it calls a tool or is empty."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.action != "answer":
        return None
    return without_thoughts(last.text).strip() or None


def tool_environment(options: ToolsOptions, tasks: Tasks | None) -> ToolEnvironment:
    """Build the environment of a run file; ConfigError for functions that cannot be used."""
    tools = [import_object(name, "environment.tools") for name in options.tools]
    return ToolEnvironment(tools, tasks or {}, seconds=options.seconds)


def tool_of(function: Any, seconds: float, owner: str = "") -> Tool:
    """Make a tool of a function or bound method with type hints and a Google-style docstring.

    Args:
        function: the function, sync or async.
        seconds: the timeout of a call.
        owner: the class of a method and a dot, for errors.

    Raises:
        ConfigError: names tool, parameter and what to add.
    """
    # Loads transformers, which is not needed without tools.
    from transformers.utils import chat_template_utils

    utils = cast(Any, chat_template_utils)
    name = getattr(function, "__name__", repr(function))
    try:
        schema = dict(utils.get_json_schema(function))
    except (
        utils.TypeHintParsingException,
        utils.DocstringParsingException,
        ValueError,
        NameError,
        TypeError,
    ) as error:
        reason = one_line(" ".join(map(str, error.args)) or str(error))[:200]
        raise ConfigError(
            f"tools: {owner}{name} cannot be a tool ({reason}); expected a function with a docstring, and for "
            'each parameter a line "name: what it is" under "Args:", without its type, and a type in the '
            "signature: str, int, float, bool, Literal, Enum, and list, dict or unions of them"
        ) from error
    return Tool(name, schema, function, float(seconds))


def text_of(value: Any) -> str:
    """Return a result as TRL shows it: the texts of content blocks, or `str`; ConfigError for an image."""
    blocks = cast("list[Any]", value) if isinstance(value, list) else []
    types = {cast(Any, block).get("type") if isinstance(block, dict) else None for block in blocks}
    if "image" in types:
        raise ConfigError(
            "environment: a tool or reset() returned an image; policies are trained only on text"
        )
    if types != {"text"}:
        return str(cast(object, value))
    return "".join(str(block["text"]) for block in blocks)


def call_tools(
    actions: Sequence[Action],
    tools: Callable[[Action], Sequence[Tool]],
    runner: ToolRunner,
    stateful: bool = False,
) -> list[Response]:
    """Make the calls of all episodes at the same time and return the responses.

    Args:
        actions: one turn of each episode.
        tools: returns the tools of an episode.
        runner: makes the calls.
        stateful: an episode's tools share a state: its calls are made one after the other, and a
            timeout breaks the environment, since the call may still change the state.
    """
    turns = [_jobs(action, tools) for action in actions]
    lanes = [[job for job in turn if job is not None] for turn in turns]
    runner.run(lanes if stateful else [[job] for lane in lanes for job in lane])
    return [_response(*pair, stateful) for pair in zip(actions, turns, strict=True)]


def _jobs(action: Action, tools: Callable[[Action], Sequence[Tool]]) -> list[Job | None]:
    """Return the calls of a turn to make, None for an unknown tool; those of the last turn are not made."""
    if action.last or not action.calls.calls:
        return []
    by_name = {tool.name: tool for tool in tools(action)}
    jobs: list[Job | None] = []
    for call in action.calls.calls:
        tool = by_name.get(call.name)
        jobs.append(tool and Job(tool.function, tool.seconds, call.arguments, tool.worker))
    return jobs


def _response(action: Action, jobs: Sequence[Job | None], stateful: bool) -> Response:
    calls = action.calls.calls
    if not calls:  # as in TRL, also if it has a call that cannot be read
        return Response(done=True, action="answer", error=action.calls.error)
    if action.last:
        return Response(done=True, action=name_action(action), error=OUT_OF_TURNS)
    # TRL puts the results of async functions after those of others.
    pairs = sorted(
        zip(calls, jobs, strict=True), key=lambda pair: pair[1] is not None and pair[1].is_async
    )
    results = [(call.name, *_result(call.name, job)) for call, job in pairs]
    errors = "; ".join(dict.fromkeys(error for _, _, error in results if error))
    known = [call.name for call, job in zip(calls, jobs, strict=True) if job is not None]
    return Response(
        action=name_action(action, known),
        error=errors[:_ERROR_CHARS],
        failed=stateful and any(job is not None and job.timed_out for job in jobs),
        messages=tuple(
            {"role": "tool", "name": name, "content": text} for name, text, _ in results
        ),
    )


def _result(name: str, job: Job | None) -> tuple[str, str]:
    """Return the text of a call's result for the policy, and its error in a few words, "" for none."""
    if job is None:
        return str({"error": f"Tool {name} not found."}), NO_SUCH_TOOL
    error = job.error
    if error is None:
        try:
            return text_of(job.value), ""
        except ConfigError:
            raise
        except Exception as failure:  # noqa: BLE001 - a result whose __str__ fails
            error = failure
    kind = TIMED_OUT if job.timed_out else type(error).__name__
    return str({"error": message_of(error)}), f"{name}: {kind}"


def name_action(action: Action, tools: Sequence[str] = ()) -> str:
    """Return the name of a turn's action: its tool, or the number of calls."""
    count = len(action.calls.calls)
    if count > 1:
        return f"{count} calls"
    return tools[0] if tools else "call"


KIND = EnvironmentKind(
    options=ToolsOptions, build=tool_environment, dataset="required", runs_user_code=True
)
