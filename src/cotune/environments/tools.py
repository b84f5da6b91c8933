"""Typed Python functions as tools: their schemas, the calls of a turn, and the environment.

Tools are called, and their results shown, as `GRPOTrainer(tools=…)` of TRL does. A turn without calls is
the answer. A call that fails (no such tool, arguments that do not fit, an exception, a timeout) is an
observation that says so, so that the policy can learn from it.

Calls run several at a time, each with a timeout, so that none can hang a run. A function that takes too long
continues in its thread, since Python cannot stop it, but nothing waits for it: its slot is freed immediately, and the
thread does not keep the process from ending.
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, cast

from pydantic import Field

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.registry import EnvironmentKind, Tasks
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, ToolCall, Trajectory
from cotune.utils.background import BackgroundLoop, Worker
from cotune.utils.importing import import_object
from cotune.utils.text import message_of, one_line, without_thoughts
from cotune.utils.validation import Model

_LOOP = BackgroundLoop()
"""Starts calls and waits for them; what is async in the user's functions runs on another loop."""
CONCURRENCY = 32  # calls that run at the same time, per process


@dataclass(eq=False)
class Job:
    """A call of a function, sync or async, with its timeout; and, once it was made, what came of it.

    Attributes:
        worker: the thread that makes the call; None for a new thread.
        error: what the function raised; a TimeoutError if it took too long.
    """

    function: Callable[..., Any]
    seconds: float
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    worker: Worker | None = None
    value: Any = None
    error: BaseException | None = None
    timed_out: bool = False

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @property
    def runs_in_caller(self) -> bool:
        """Return whether it is a sync function without a timeout or a thread of its own."""
        return self.worker is None and self.seconds == math.inf and not self.is_async

    def give_up(self) -> None:
        """Note that it took too long."""
        self.error = TimeoutError(f"took longer than {self.seconds:g} s")
        self.timed_out = True


class ToolRunner:
    """Run lanes of jobs at the same time, and the jobs of a lane one after the other.

    They run in threads, where async functions wait for one event loop in the background. Sync functions without
    a timeout or a thread of their own run in the caller's thread, before the others.

    Args:
        concurrency: jobs that run at the same time, of all calls of `run`, which several threads may make.
    """

    def __init__(self, concurrency: int) -> None:
        self._slots = asyncio.Semaphore(concurrency)
        self._async_loop = BackgroundLoop()

    def run(self, lanes: Sequence[Sequence[Job]]) -> None:
        """Run all jobs.

        A lane ends with its first job that takes too long; the jobs after it are not run and count as too long as well.
        """
        others: list[list[Job]] = []
        for lane in lanes:
            for job in lane:
                if job.runs_in_caller:
                    self._run_in_caller(job)
            others.append([job for job in lane if not job.runs_in_caller])
        if any(others):
            _LOOP.run(self._run_lanes(others))

    def _run_in_caller(self, job: Job) -> None:
        try:
            value = job.function(**job.kwargs)
            if inspect.isawaitable(value):
                value = self._async_loop.run(_await(value))
            job.value = value
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - user code; SystemExit is an outcome as well
            job.error = error

    async def _run_lanes(self, lanes: Sequence[Sequence[Job]]) -> None:
        await asyncio.gather(*(self._run_lane(lane) for lane in lanes))

    async def _run_lane(self, lane: Sequence[Job]) -> None:
        has_timed_out = False
        for job in lane:
            if has_timed_out:
                job.give_up()
                continue
            async with self._slots:
                await self._make(job)
            has_timed_out = job.timed_out

    async def _make(self, job: Job) -> None:
        """Make a call and take what comes of it."""
        call = asyncio.ensure_future(self._call(job))
        await asyncio.wait([call], timeout=None if job.seconds == math.inf else job.seconds)
        if call.done():
            job.error = asyncio.CancelledError() if call.cancelled() else call.exception()
            job.value = None if job.error else call.result()
            return
        call.cancel()
        job.give_up()

    async def _call(self, job: Job) -> Any:
        worker = job.worker or Worker()
        value = await worker.call(partial(job.function, **job.kwargs))
        if inspect.isawaitable(value):
            value = await asyncio.wrap_future(self._async_loop.submit(_await(value)))
        return value


async def _await(value: Awaitable[Any]) -> Any:
    return await value


# ---- tools

INITIAL_INSTRUCTION = "Answer the question. Call the tools where they help."
OUT_OF_TURNS = "calls a tool in its last turn"
_ERROR_CHARS = 120  # of a turn's error


class ToolsOptions(Model):
    """Your own functions as tools, called through the policy's chat template."""

    kind: Literal["tools"] = "tools"
    tools: tuple[str, ...] = Field(min_length=1)
    """`package.module:name` or `file.py:name` of typed functions with docstrings."""
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""


class ToolEnvironment(TaskEnvironment):
    """Questions that the policy answers by calling your functions; reward functions score.

    The policy reads names, types and docstrings of the functions through its chat template, and calls them in the
    template's own form, one or more in a turn. A turn without a call is the answer; `answer` is its text without
    thoughts. Calls of all episodes run at the same time, so a function with state must be thread-safe. Tasks,
    initial instruction and prompt format are those of `TaskEnvironment`.

    Args:
        tools: functions with types and Google-style docstrings, sync or async. Arguments are those that the policy
            wrote; results are shown by `str`, exceptions as `{'error': …}`, those of async functions last.
        seconds: the timeout of a call. A sync function cannot be stopped: it continues in its thread, and its result is
            dropped. Without a timeout (`math.inf`) sync functions are called one after the other in the caller's
            thread, as TRL does.

    Raises:
        ConfigError: a function has no types or docstring, or two have the same name; names tool and parameter.
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
        self.tools = tuple(schema_of(function) for function in tools)
        names = [schema["function"]["name"] for schema in self.tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"tools: two are called {twice[0]}; rename one of them")
        self._functions = dict(zip(names, tools, strict=True))
        self._seconds = seconds
        # Without a timeout, sync functions run in the thread that trains, where no event loop may run:
        # a function may start one.
        if seconds == math.inf and not all(map(inspect.iscoroutinefunction, tools)):
            self.parallel_responses = 0
        self._runner = ToolRunner(CONCURRENCY)

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Make the calls of all episodes at the same time; return responses in order."""
        return call_tools(actions, self._job_of, self._runner)

    def _job_of(self, action: Action, call: ToolCall) -> Job | None:
        function = self._functions.get(call.name)
        return None if function is None else Job(function, self._seconds, call.arguments)

    def answer_of(self, trajectory: Trajectory) -> str | None:
        """Return the last turn without its thoughts; None if it calls a tool or is empty."""
        return answer_of(trajectory)


def answer_of(trajectory: Trajectory) -> str | None:
    """Return the last turn without its thoughts; None if it calls a tool or is empty."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.action != "answer":
        return None
    return without_thoughts(last.text).strip() or None


def tool_environment(options: ToolsOptions, tasks: Tasks | None) -> ToolEnvironment:
    """Build the environment of a run file."""
    tools = [import_object(name, "environment.tools") for name in options.tools]
    return ToolEnvironment(tools, tasks or {}, seconds=options.seconds)


def schema_of(function: Any, owner: str = "") -> dict[str, Any]:
    """Return the JSON schema of a function or bound method; `owner`, the class of a method and a dot, is for errors.

    Raises:
        ConfigError: it lacks type hints or a Google-style docstring; names tool, parameter and what to add.
    """
    # Loads transformers, which is not needed without tools.
    from transformers.utils import chat_template_utils

    utils = cast(Any, chat_template_utils)
    name = getattr(function, "__name__", repr(function))
    try:
        return dict(utils.get_json_schema(function))
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
        ) from None


def call_tools(
    actions: Sequence[Action],
    job_of: Callable[[Action, ToolCall], Job | None],
    runner: ToolRunner,
    stateful: bool = False,
) -> list[Response]:
    """Make the calls of all episodes at the same time and return the responses.

    Args:
        job_of: returns the job of an episode's call, None for an unknown tool. Calls of a last turn are not made.
        stateful: an episode's tools share a state: its calls are made one after the other, and a
            timeout breaks the environment, since the call may still change the state.
    """
    turns = [
        [job_of(action, call) for call in action.calls.calls if not action.last]
        for action in actions
    ]
    lanes = [[job for job in turn if job is not None] for turn in turns]
    runner.run(lanes if stateful else [[job] for lane in lanes for job in lane])
    return [_response(*pair, stateful) for pair in zip(actions, turns, strict=True)]


def _response(action: Action, jobs: Sequence[Job | None], stateful: bool) -> Response:
    calls = action.calls.calls
    if not calls:  # as in TRL, also if it has a call that cannot be read
        return Response(done=True, action="answer", error=action.calls.error)
    if action.last:
        return Response(done=True, action="call", error=OUT_OF_TURNS)
    # TRL puts the results of async functions after those of others.
    pairs = sorted(
        zip(calls, jobs, strict=True), key=lambda pair: pair[1] is not None and pair[1].is_async
    )
    results = [(call.name, *_result(call.name, job)) for call, job in pairs]
    errors = "; ".join(dict.fromkeys(error for _, _, error in results if error))
    tool_names = [call.name for call, job in zip(calls, jobs, strict=True) if job is not None]
    return Response(
        action=name_action(action, tool_names),
        error=errors[:_ERROR_CHARS],
        failed=stateful and any(job is not None and job.timed_out for job in jobs),
        messages=tuple(
            {"role": "tool", "name": name, "content": text} for name, text, _ in results
        ),
    )


def _result(name: str, job: Job | None) -> tuple[str, str]:
    """Return the text of a call's result for the policy, and its error in a few words, "" for none."""
    if job is None:
        return str({"error": f"Tool {name} not found."}), "no such tool"
    error = job.error
    if error is None:
        try:
            return _text_of(job.value), ""
        except ConfigError:
            raise
        except Exception as failure:  # noqa: BLE001 - user code writes the text
            error = failure
    kind = "took too long" if job.timed_out else type(error).__name__
    return str({"error": message_of(error)}), f"{name}: {kind}"


def _text_of(value: Any) -> str:
    """Return a result as TRL shows it: the texts of content blocks, or `str`; ConfigError for an image."""
    blocks = cast("list[Any]", value) if isinstance(value, list) else []
    types = {cast(Any, block).get("type") if isinstance(block, dict) else None for block in blocks}
    if "image" in types:
        raise ConfigError(
            "environment: a tool returned an image; policies are trained only on text"
        )
    if types != {"text"}:
        return str(cast(object, value))
    return "".join(str(block["text"]) for block in blocks)


def name_action(action: Action, tools: Sequence[str] = ()) -> str:
    """Return the name of a turn's action: its tool, or the number of calls."""
    count = len(action.calls.calls)
    if count > 1:
        return f"{count} calls"
    return tools[0] if tools else "call"


KIND = EnvironmentKind(
    options=ToolsOptions, build=tool_environment, dataset="required", runs_user_code=True
)
