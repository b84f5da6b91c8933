"""Typed Python functions as tools: their schemas, the calls of a turn, and the environment.

A turn without calls is the answer. A call that fails (no such tool, arguments that do not fit, an
exception, a timeout) is an observation that says so, so that the policy can learn from it.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.environment_kind import EnvironmentKind, Tasks
from cotune.environments.tool_runner import Job, Outcome, ToolRunner, Worker, is_async
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, ToolCall, Trajectory
from cotune.utils.importing import import_object
from cotune.utils.text import message_of, one_line, without_thoughts
from cotune.utils.validation import Model, TextOrFields

ToolFunction = Callable[..., Any]
INITIAL_INSTRUCTION = "Answer the question. Call the tools where they help."
CONCURRENCY = 32  # calls that run at the same time, per process
OUT_OF_TURNS = "calls a tool in its last turn"
TIMED_OUT = "took too long"
NO_SUCH_TOOL = "no such tool"
_SHOWN = 120  # characters of a turn's error
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# Models also write 7 for a text parameter.
_LENIENT = ConfigDict(coerce_numbers_to_str=True)
_JSON: tuple[type[Any], ...] = (dict, list, tuple, int, float, type(None))


class ToolConfig(TextOrFields):
    """A tool and its timeout."""

    function: str
    """`package.module:name` or `file.py:name` of a typed function with a docstring."""
    seconds: float | None = Field(default=None, gt=0)
    """Timeout of a call, in seconds; null: the environment's."""


class ToolsOptions(Model):
    """Your own functions as tools, called through the policy's chat template."""

    kind: Literal["tools"] = "tools"
    tools: tuple[ToolConfig, ...] = Field(min_length=1)
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""


class BadArguments(ValueError):
    """The arguments of a call do not fit its tool; the message says which and why."""


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call.

    Attributes:
        name: the name in calls.
        schema: its JSON schema for chat templates: {"type": "function", "function": …}.
        function: the function, sync or async.
        seconds: the timeout of a call.
        signature: the function's signature.
        types: adapters that check and convert each parameter's value.
        worker: the thread it is called in; None for a new one each time.
    """

    name: str
    schema: Mapping[str, Any]
    function: Callable[..., Any]
    seconds: float
    signature: inspect.Signature
    types: Mapping[str, TypeAdapter[Any]]
    worker: Worker | None = None

    def bind(self, arguments: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind a call's arguments to the signature, converted if the type allows ("7" to 7).

        Raises:
            BadArguments: an argument is missing, unknown or of another type.
        """
        for name in arguments:
            if name not in self.types:
                takes = ", ".join(self.types) or "none"
                raise BadArguments(f"there is no argument {name!r}; it takes {takes}")
        for name, parameter in self.signature.parameters.items():
            if name not in arguments and parameter.default is inspect.Parameter.empty:
                raise BadArguments(f"the argument {name!r} is missing")
        bound = self.signature.bind_partial()
        for name in self.signature.parameters:
            if name in arguments:
                bound.arguments[name] = self._converted(name, arguments[name])
        return bound

    def _converted(self, name: str, value: Any) -> Any:
        try:
            return self.types[name].validate_python(value)
        except ValidationError as error:
            problem = str(error.errors(include_url=False)[0]["msg"])
        except Exception as error:  # noqa: BLE001  # of a validator of the user's
            problem = f"{type(error).__name__}: {error}"
        raise BadArguments(f"the argument {name!r} is {_json(value)[:80]}: {problem}")


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=str)
    except RecursionError:
        return "nested too deeply"


Tools = Callable[[Action], Sequence[Tool]]
"""A function that returns the tools of an episode."""


class ToolEnvironment(TaskEnvironment):
    """Questions that the policy answers by calling your functions; reward functions score.

    The policy reads names, types and docstrings of the functions through its chat template, and
    calls them in the template's own form, one or more in a turn. A turn without a call is
    the answer; `answer` is its text without thoughts. Calls of all episodes run at the same time,
    so a function with state must be thread-safe.

    Args:
        tools: functions with types and Google-style docstrings, sync or async, each alone or with
            its own timeout: (function, seconds). Results that are texts are shown unchanged,
            others as JSON; exceptions are shown as errors.
        tasks: the tasks of each split: "train", "validation", "test".
        initial_instruction: the instruction that training starts from.
        prompt_format: the layout of a prompt.
        seconds: the timeout of a call. A sync function cannot be stopped: it continues in its
            thread, and its result is dropped. Without a timeout (`math.inf`) sync functions are called
            one after the other in the caller's thread, as TRL does.
        as_trl: call the tools and show what they return as `GRPOTrainer(tools=…)` does: arguments as the
            policy wrote them, results by `str`, errors as `{'error': …}`, async functions' results last;
            a call that cannot be read is the answer.

    Raises:
        ConfigError: a function has no types or docstring, or two have the same name; names tool
            and parameter.
    """

    needs_rewards = True

    def __init__(
        self,
        tools: Sequence[ToolFunction | tuple[ToolFunction, float]],
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str = INITIAL_INSTRUCTION,
        prompt_format: PromptFormat | None = None,
        *,
        seconds: float = 30.0,
        as_trl: bool = False,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        self.as_trl = as_trl
        if callable(tools) or not tools:
            value = "a function" if tools else "empty"
            raise ConfigError(f"tools is {value}; expected a list of one function or more")
        pairs = [
            cast("tuple[ToolFunction, float]", tool) if isinstance(tool, tuple) else (tool, seconds)
            for tool in tools
        ]
        self._tools = tuple(tool_of(function, timeout) for function, timeout in pairs)
        names = [tool.name for tool in self._tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"tools: two are called {twice[0]}; rename one of them")
        self._runner = ToolRunner(CONCURRENCY)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool.schema for tool in self._tools)

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Make the calls of all episodes at the same time; return responses in order."""
        text_for = trl_text_of if self.as_trl else text_of
        return answered(actions, self._tools_of, self._runner, text_for, as_trl=self.as_trl)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return reward 0, and as the answer the last turn without its thoughts."""
        return 0.0, answer_of(trajectory)

    def _tools_of(self, action: Action) -> Sequence[Tool]:
        return self._tools


def answer_of(trajectory: Trajectory) -> str | None:
    """Return the last turn without its thoughts; None if it calls a tool or is empty."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.action != "answer":
        return None
    return without_thoughts(last.text).strip() or None


def tool_environment(options: ToolsOptions, tasks: Tasks | None) -> ToolEnvironment:
    """Build the environment of a run file; ConfigError for functions that cannot be used."""
    tools = [
        (import_object(tool.function, "environment.tools"), tool.seconds or options.seconds)
        for tool in options.tools
    ]
    try:
        return ToolEnvironment(tools, tasks or {})
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
    where = f"tools: {owner}{'.' if owner else ''}{name}"
    if not seconds > 0:
        raise ConfigError(f"{where}: seconds is {seconds}; expected more than 0")
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            raise ConfigError(
                f"{where} takes {str(parameter).split(':')[0]}; expected named parameters: name "
                "each with its type"
            )
    if not inspect.getdoc(function):
        raise ConfigError(
            f"{where} has no docstring; describe what it does, and each parameter in an Args: section"
        )
    # Loads transformers, which is not needed without tools.
    from transformers.utils import chat_template_utils

    utils = cast(Any, chat_template_utils)
    try:
        schema = dict(utils.get_json_schema(function))
        hints = get_type_hints(function, include_extras=True)
        types = {name: TypeAdapter(hints[name], config=_LENIENT) for name in signature.parameters}
    except (
        utils.TypeHintParsingException,
        utils.DocstringParsingException,
        PydanticSchemaGenerationError,
        ValueError,
        NameError,
        TypeError,
    ) as error:
        reason = one_line(" ".join(map(str, error.args)) or str(error))[:200]
        raise ConfigError(
            f'{where} cannot be a tool ({reason}); expected for each parameter a line under "Args:" and '
            "a type: str, int, float, bool, Literal, Enum, and list, dict or unions of them"
        ) from error
    return Tool(name, schema, function, float(seconds), signature, types)


def text_of(result: Any) -> str:
    """Return a result as the policy reads it: texts unchanged, plain data as JSON, others by str()."""
    if isinstance(result, _JSON):
        try:
            return json.dumps(result, ensure_ascii=False, default=str)
        except (TypeError, ValueError):  # keys that are not texts, or a list that contains itself
            pass
    return str(result)


def trl_text_of(result: Any) -> str:
    """Return a result as TRL shows it to the policy: by `str`, or the texts of content blocks."""
    text = text_of_blocks(result)
    return str(result) if text is None else text


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
class _Answer:
    """The outcome of one call: the text for the policy, and the error in a few words."""

    name: str
    as_trl: bool
    job: Job | None = None
    text: str = ""
    error: str = ""
    timed_out: bool = False

    @property
    def comes_late(self) -> bool:
        """Whether TRL puts its result after those of other calls."""
        return self.as_trl and self.job is not None and is_async(self.job.function)

    def take(self, outcome: Outcome, text_for: Callable[[Any], str]) -> None:
        """Fill in the result or the error of the call."""
        self.timed_out = outcome.timed_out
        if outcome.timed_out:
            self.fail(TIMED_OUT, f"{self.name} {outcome.error}", str(outcome.error))
        elif outcome.error is not None:
            kind, reason = type(outcome.error).__name__, message_of(outcome.error)
            self.fail(kind, f"{kind}: {reason}", reason)
        else:
            try:
                self.text = text_for(outcome.value)
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - a result whose __str__ fails
                text = f"its result has no text: {message_of(error)}"
                self.fail(type(error).__name__, text, text)

    def fail(self, error: str, text: str, trl_text: str) -> "_Answer":
        """Fill in an error, and the text that shows it."""
        self.error = f"{self.name}: {error}"
        self.text = str({"error": trl_text}) if self.as_trl else f"Error: {text}"
        return self


def answered(
    actions: Sequence[Action],
    tools: Tools,
    runner: ToolRunner,
    text_for: Callable[[Any], str] = text_of,
    stateful: bool = False,
    as_trl: bool = False,
) -> list[Response]:
    """Make the calls of all episodes at the same time and return the responses.

    Args:
        actions: one turn of each episode.
        tools: returns the tools of an episode.
        runner: makes the calls.
        text_for: turns a result into the text for the policy.
        stateful: an episode's tools share a state: its calls are made one after the other, and a
            timeout breaks the environment, since the call may still change the state.
        as_trl: see `ToolEnvironment`.
    """
    turns = [_prepared(action, tools, as_trl) for action in actions]
    lanes: list[list[_Answer]] = []
    for turn in turns:
        to_make = [answer for answer in turn if answer.job is not None]
        lanes += [to_make] if stateful else [[answer] for answer in to_make]
    jobs = [[answer.job for answer in lane if answer.job is not None] for lane in lanes]
    for lane, outcomes in zip(lanes, runner.run(jobs), strict=True):
        for answer, outcome in zip(lane, outcomes, strict=True):
            answer.take(outcome, text_for)
    return [
        _response(action, sorted(turn, key=lambda answer: answer.comes_late), stateful, as_trl)
        for action, turn in zip(actions, turns, strict=True)
    ]


def _prepared(action: Action, tools: Tools, as_trl: bool) -> list[_Answer]:
    """Return the calls of a turn; those that cannot be made come with the reason."""
    if action.last or action.calls.error:
        return []
    by_name = {tool.name: tool for tool in tools(action)} if action.calls.calls else {}
    return [_call(call, by_name, as_trl) for call in action.calls.calls]


def _call(call: ToolCall, tools: Mapping[str, Tool], as_trl: bool) -> _Answer:
    tool = tools.get(call.name)
    if tool is None:
        name = call.name if as_trl else call.name[:_SHOWN]
        text = f"there is no tool {name!r}; the tools are {', '.join(tools)}"
        answer = _Answer(name, as_trl).fail("", text, f"Tool {name} not found.")
        answer.error = NO_SUCH_TOOL
        return answer
    if as_trl:
        args, kwargs = (), call.arguments
    else:
        try:
            bound = tool.bind(call.arguments)
        except BadArguments as error:
            return _Answer(tool.name, as_trl).fail("bad arguments", str(error), "")
        args, kwargs = bound.args, bound.kwargs
    return _Answer(tool.name, as_trl, Job(tool.function, tool.seconds, args, kwargs, tool.worker))


def _response(action: Action, turn: Sequence[_Answer], stateful: bool, as_trl: bool) -> Response:
    calls = action.calls
    if calls.error and not as_trl:
        text = f"Error: {calls.error}. Write the call again in the form shown, or answer without."
        message = {"role": "user", "content": text}
        return Response(done=action.last, action="invalid", error=calls.error, messages=(message,))
    if not calls.calls:
        return Response(done=True, action="answer")
    if action.last:
        return Response(done=True, action=named_action(action), error=OUT_OF_TURNS)
    errors = "; ".join(dict.fromkeys(answer.error for answer in turn if answer.error))
    return Response(
        action=named_action(
            action, [answer.name for answer in turn if answer.error != NO_SUCH_TOOL]
        ),
        error=errors[:_SHOWN],
        failed=stateful and any(answer.timed_out for answer in turn),
        messages=tuple({"role": "tool", "name": a.name, "content": a.text} for a in turn),
    )


def named_action(action: Action, tools: Sequence[str] = ()) -> str:
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
