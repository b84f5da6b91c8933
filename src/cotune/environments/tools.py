"""Typed Python functions as tools: their schemas, the calls of a turn, and the environment.

Tools are called, and their results shown, as `GRPOTrainer(tools=…)` of TRL does. A turn without calls is
the answer. A call that fails (no such tool, arguments that do not fit, an exception, a timeout) is an
observation that says so, so that the policy can learn from it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import Field

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.environments.tool_runner import Job, Outcome, ToolRunner, Worker, is_async
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, ToolCall, Trajectory
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


Tools = Callable[[Action], Sequence[Tool]]
"""A function that returns the tools of an episode."""


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
    try:
        return ToolEnvironment(tools, tasks or {}, seconds=options.seconds)
    except ConfigError as error:
        if not str(error).startswith("tools"):
            raise
        raise ConfigError(f"environment.{error}") from error


def tool_of(function: Any, seconds: float, owner: str = "") -> Tool:
    """Make a tool of a function or bound method with type hints and a Google-style docstring.

    Args:
        function: the function, sync or async.
        seconds: the timeout of a call.
        owner: the class of a method, for errors.

    Raises:
        ConfigError: names tool, parameter and what to add.
    """
    name = getattr(function, "__name__", "")
    if inspect.isclass(function) or not callable(function) or not name.isidentifier():
        raise ConfigError(
            f"tools: {function!r} is not a named function; expected a typed function with a "
            "docstring: write a def for it"
        )
    label = f"tools: {owner}{'.' if owner else ''}{name}"
    if not seconds > 0:
        raise ConfigError(f"{label}: seconds is {seconds}; expected more than 0")
    if not inspect.getdoc(function):
        raise ConfigError(
            f"{label} has no docstring; describe what it does, and each parameter in an Args: section"
        )
    # Loads transformers, which is not needed without tools.
    from transformers.utils import chat_template_utils

    utils = cast(Any, chat_template_utils)
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
            f'{label} cannot be a tool ({reason}); expected for each parameter a line under "Args:" and '
            "a type: str, int, float, bool, Literal, Enum, and list, dict or unions of them"
        ) from error
    return Tool(name, schema, function, float(seconds))


def text_of_blocks(value: Any) -> str | None:
    """Return the texts of content blocks; None for other values, ConfigError for an image."""
    if not isinstance(value, list):
        return None
    blocks = cast("list[Any]", value)
    types = [cast(Any, b).get("type") if isinstance(b, dict) else None for b in blocks]
    if "image" in types:
        raise ConfigError(
            "environment: a tool or reset() returned an image; policies are trained only on text"
        )
    if not blocks or set(types) != {"text"}:
        return None
    return "".join(str(block["text"]) for block in blocks)


@dataclass
class _Result:
    """The outcome of one call: the text for the policy, and the error in a few words.

    Attributes:
        job: the call to make; None for an unknown tool.
    """

    name: str
    job: Job | None
    text: str = ""
    error: str = ""
    timed_out: bool = False

    @property
    def comes_last(self) -> bool:
        """Whether TRL puts it after the results of other calls."""
        return self.job is not None and is_async(self.job.function)

    def fill(self, outcome: Outcome) -> None:
        """Set the text, or the error, of the call."""
        self.timed_out = outcome.timed_out
        error = outcome.error
        try:
            blocks = text_of_blocks(outcome.value)
            self.text = str(outcome.value) if blocks is None else blocks
        except ConfigError:
            raise
        except Exception as failure:  # noqa: BLE001 - a result whose __str__ fails
            error = failure
        if error is not None:
            kind = TIMED_OUT if outcome.timed_out else type(error).__name__
            self.error = f"{self.name}: {kind}"
            self.text = str({"error": message_of(error)})


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
    turns = [_prepare(action, tools) for action in actions]
    lanes: list[list[_Result]] = []
    for turn in turns:
        to_make = [result for result in turn if result.job is not None]
        lanes += [to_make] if stateful else [[result] for result in to_make]
    jobs = [[result.job for result in lane if result.job is not None] for lane in lanes]
    for lane, outcomes in zip(lanes, runner.run(jobs), strict=True):
        for result, outcome in zip(lane, outcomes, strict=True):
            result.fill(outcome)
    return [_response(*pair, stateful) for pair in zip(actions, turns, strict=True)]


def _prepare(action: Action, tools: Callable[[Action], Sequence[Tool]]) -> list[_Result]:
    """Return the calls of a turn; those of the last turn are not made."""
    if action.last or not action.calls.calls:
        return []
    by_name = {tool.name: tool for tool in tools(action)}
    return [_prepare_call(call, by_name.get(call.name)) for call in action.calls.calls]


def _prepare_call(call: ToolCall, tool: Tool | None) -> _Result:
    if tool is None:
        text = str({"error": f"Tool {call.name} not found."})
        return _Result(call.name, None, text, NO_SUCH_TOOL)
    job = Job(tool.function, tool.seconds, kwargs=call.arguments, worker=tool.worker)
    return _Result(tool.name, job)


def _response(action: Action, turn: Sequence[_Result], stateful: bool) -> Response:
    if not action.calls.calls:  # as in TRL, also if it has a call that cannot be read
        return Response(done=True, action="answer", error=action.calls.error)
    if action.last:
        return Response(done=True, action=name_action(action), error=OUT_OF_TURNS)
    results = sorted(turn, key=lambda result: result.comes_last)
    errors = "; ".join(dict.fromkeys(result.error for result in results if result.error))
    return Response(
        action=name_action(action, [result.name for result in turn if result.job is not None]),
        error=errors[:_ERROR_CHARS],
        failed=stateful and any(result.timed_out for result in turn),
        messages=tuple({"role": "tool", "name": r.name, "content": r.text} for r in results),
    )


def name_action(action: Action, tools: Sequence[str] = ()) -> str:
    """Return the name of a turn's action: its tool, or the number of calls."""
    count = len(action.calls.calls)
    if count > 1:
        return f"{count} calls"
    return tools[0] if tools else "call"


KIND = EnvironmentKind(
    options=ToolsOptions,
    build=tool_environment,
    dataset="required",
    needs_rewards=True,
    runs_user_code=True,
)
