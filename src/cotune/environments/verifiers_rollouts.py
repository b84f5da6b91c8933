"""Rollouts of a `verifiers` environment: its own loop sends requests, the policy answers them.

Imports nothing of verifiers, whose two interfaces have modules of their own: `verifiers_classic` and
`verifiers_v1`.
"""

# pyright: basic
# verifiers has no types that say what it takes.

import asyncio
import json
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.tools import OUT_OF_TURNS, answer_of
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Trajectory
from cotune.utils.background import BackgroundLoop
from cotune.utils.text import named, one_line

_FIELD = "environment.environment"
_REFUSALS = 4  # refused requests after which a rollout is cancelled
_PATIENCE = 2.0  # seconds in which a loop that is not blocked answers
MODEL = "policy"  # the model's name in requests

Chat = dict[str, str]


class Api(Protocol):
    """One interface of verifiers over one environment."""

    tools: tuple[Mapping[str, Any], ...]

    def start(self, task: Task, prompt: Sequence[Chat]) -> "Rollout":
        """Start a rollout of a task from a prompt, on the event loop that calls this."""
        ...


class VerifiersEnvironment(TaskEnvironment):
    """See `environments.verifiers.from_verifiers`.

    Each episode is one of the environment's own rollouts, on an event loop in the background, which
    waits for the policy's next turn. Timeouts are the environment's own.
    """

    takes_any_tasks = False

    def __init__(
        self,
        api: Api,
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str,
        prompt_format: PromptFormat,
        loop: BackgroundLoop,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        self._api, self._loop = api, loop
        self._rollouts: dict[int, Rollout] = {}
        # If a run ends before its episodes, their tasks must not warn at exit.
        weakref.finalize(self, _end, self._loop, self._rollouts)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._api.tools

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Give each rollout the policy's turn; the next request of its loop is the observation.

        Raises:
            ConfigError: a rollout cannot be trained on: it rewrites the conversation, changes its
                tools, or shows images.
        """
        return self._loop.run(self._respond(actions))

    def reference(self, task: Task) -> str:
        """Return "": only a rollout of its own has a reward."""
        return ""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the environment's rubric; 0 if the environment broke."""
        output = self._output(trajectory)
        reward = output.get("reward", 0.0)
        if not math.isfinite(reward):
            raise ConfigError(
                f"{_FIELD}: its rubric gave {reward} for task {trajectory.task.id}; expected a "
                "finite number"
            )
        return float(reward), answer_of(trajectory)

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the values of the rubric's functions, by name."""
        metrics = self._output(trajectory).get("metrics") or {}
        return {name: float(value) for name, value in metrics.items()}

    def _output(self, trajectory: Trajectory) -> Mapping[str, Any]:
        rollout = self._rollouts.get(trajectory.row)
        return {} if rollout is None else self._loop.run(rollout.ended())

    async def _respond(self, actions: Sequence[Action]) -> list[Response]:
        return list(await asyncio.gather(*(self._one(action) for action in actions)))

    async def _one(self, action: Action) -> Response:
        try:
            if not action.turns:
                await self._begin(action)
            return await self._rollouts[action.row].answer(action)
        except ConfigError:
            raise
        # Of the user's environment; they end the episode only.
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            reason = named(error, 120)
            return Response(failed=True, action="invalid", error=reason)

    async def _begin(self, action: Action) -> None:
        if (left := self._rollouts.pop(action.row, None)) is not None:
            await left.drop()
        prompt = self.messages(action.task, action.prompt)
        self._rollouts[action.row] = self._api.start(action.task, prompt)


class Requests:
    """The requests of one rollout, and the policy's replies to them."""

    def __init__(self) -> None:
        self._questions: asyncio.Queue[tuple[list[Any], Sequence[Any] | None]] = asyncio.Queue()
        self._reply: asyncio.Future[Any] | None = None

    async def asked(self) -> tuple[list[Any], Sequence[Any] | None]:
        """Wait for the environment's next request: its messages and tools."""
        return await self._questions.get()

    async def ask(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> Any:
        """Return the policy's reply to a request of the environment, or raise its refusal."""
        self._reply = asyncio.get_running_loop().create_future()
        self._questions.put_nowait((list(messages), tools))
        return await self._reply

    def answer(self, response: Any) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(response)

    def refuse(self, error: Exception) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


class Rollout(ABC):
    """One rollout of the environment's own loop.

    Args:
        requests: what the loop asks, and where the policy's replies go.
        task: the loop; its result is its output, with `reward`, `metrics`, `error` and
            `stop_condition`.
        prompt: the messages that the loop must start from.
        offered: names of the tools that it must offer; None until the first request.
    """

    def __init__(
        self,
        requests: Requests,
        task: "asyncio.Future[Mapping[str, Any]]",
        prompt: Sequence[Chat],
        offered: Sequence[str] | None,
    ) -> None:
        self._requests, self._task = requests, task
        # A dropped rollout's exception is never retrieved otherwise.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._prompt, self._offered = prompt, offered
        self._seen: list[Any] = []
        self._calls: dict[str, str] = {}

    @abstractmethod
    def _response(self, turn: int, text: str, calls: Sequence[tuple[str, str, str]]) -> Any:
        """Return a turn as a server would send it; calls are (id, name, arguments as JSON)."""

    @abstractmethod
    def _refuse(self) -> None:
        """Refuse the open request like a server whose context is full."""

    async def first(self) -> Sequence[Any]:
        """Return the tools that the first request offers, and end the rollout."""
        waiting = asyncio.ensure_future(self._requests.asked())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            await self.ended()
            return waiting.result()[1] or ()
        waiting.cancel()
        raise ConfigError(f"{_FIELD}: a rollout ends without a request ({_error_of(self._task)})")

    async def answer(self, action: Action) -> Response:
        """Pass the policy's turn to the loop, and return its next request or the episode's end."""
        if not self._seen:
            asked = await self._asked()
            if asked is not None:
                self._check_first(asked)
        if self._task.done():
            return self._last(action)
        self._requests.answer(self._turn(action))
        asked = await self._asked()
        if asked is None:
            return self._last(action)
        if action.last:
            await self.ended()
            return Response(done=True, action=self._named(action), error=OUT_OF_TURNS)
        return Response(
            action=self._named(action), error=action.calls.error, messages=tuple(self._new(asked))
        )

    async def ended(self) -> Mapping[str, Any]:
        """Return the rollout's output; if it sends another request, report a full context."""
        for _ in range(_REFUSALS):
            if self._task.done():
                broke = self._task.cancelled() or self._task.exception() is not None
                return {} if broke else self._task.result()
            self._refuse()
            await self._asked()
        self._task.cancel()
        return {}

    async def drop(self) -> None:
        """Cancel the rollout if it still runs."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_PATIENCE)

    async def _asked(self) -> list[Any] | None:
        """Return the messages of the loop's next request; None if it has ended."""
        waiting = asyncio.ensure_future(self._requests.asked())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return None
        messages, tools = waiting.result()
        names = [tool.name for tool in tools or ()]
        if self._offered is not None and names != self._offered:
            raise ConfigError(
                f"{_FIELD}: a rollout offers the tools {', '.join(names) or '(none)'}, the "
                f"environment {', '.join(self._offered) or '(none)'}; expected the same in all"
            )
        return messages

    def _last(self, action: Action) -> Response:
        """Return the end of an episode from the loop's output."""
        output = self._task.result()
        if error := output.get("error"):
            reason = named(error, 120)
            return Response(failed=True, action=self._named(action), error=reason)
        late = output.get("stop_condition") == "timeout_reached"
        error = "the environment's time is up" if late else action.calls.error
        return Response(done=True, action=self._named(action), error=error)

    def _named(self, action: Action) -> str:
        """Return the name of a turn's action: an answer, its tool, or the number of calls."""
        names = [call.name for call in action.calls.calls]
        if not names:
            return "invalid" if action.calls.error else "answer"
        if len(names) > 1:
            return f"{len(names)} calls"
        return names[0] if names[0] in (self._offered or ()) else "call"  # no made-up name

    def _check_first(self, asked: list[Any]) -> None:
        """Check that the loop starts from the prompt that the policy saw."""
        if [_chat(m, {}) for m in asked] != [dict(m) for m in self._prompt]:
            raise ConfigError(
                f"{_FIELD}: it changes a row's prompt when a rollout begins; expected the row's own: "
                "put what it adds into the data"
            )
        self._seen = asked

    def _turn(self, action: Action) -> Any:
        calls = [
            (f"call_{len(action.turns)}_{i}", call.name, json.dumps(dict(call.arguments)))
            for i, call in enumerate(action.calls.calls)
        ]
        self._calls = {id: name for id, name, _ in calls}
        return self._response(len(action.turns), action.calls.said if calls else action.text, calls)

    def _new(self, asked: list[Any]) -> list[Chat]:
        """Return the messages that the loop has added after the policy's turn."""
        own = len(self._seen) + 1
        before = [_plain(m) for m in self._seen]
        if [_plain(m) for m in asked[: own - 1]] != before or len(asked) < own:
            raise ConfigError(
                f"{_FIELD}: it rewrites the conversation between turns; policies are trained on one "
                "that only grows: choose another environment"
            )
        self._seen = asked
        new = [_chat(m, self._calls) for m in asked[own:]]
        if not new or any(m["role"] == "assistant" for m in new):
            what = "nothing" if not new else "a turn of the policy's"
            raise ConfigError(
                f"{_FIELD}: it answers a turn with {what}; expected messages of a tool or the user"
            )
        return new


def _end(loop: BackgroundLoop, rollouts: Mapping[int, Rollout]) -> None:
    async def end() -> None:
        for rollout in rollouts.values():
            await rollout.drop()

    if rollouts and loop.answers(_PATIENCE):
        loop.run(end())


def schema_of(tool: Any) -> dict[str, Any]:
    """Return a tool's schema for chat templates."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _error_of(task: "asyncio.Future[Mapping[str, Any]]") -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception() or task.result().get("error") or "no error"
    return named(error) if isinstance(error, BaseException) else one_line(str(error))[:200]


def _plain(message: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Return what identifies a message: role, text and calls."""
    calls = getattr(message, "tool_calls", None) or ()
    return message.role, _text(message), [(call.name, call.arguments) for call in calls]


def _chat(message: Any, calls: Mapping[str, str]) -> Chat:
    """Return a message for the chat template; a tool's message has its name."""
    chat = {"role": str(message.role), "content": _text(message)}
    if chat["role"] == "tool":
        chat["name"] = calls.get(message.tool_call_id, "tool")
    return chat


def _text(message: Any) -> str:
    content = message.content
    if isinstance(content, list):
        parts = [_part(part) for part in cast("list[Any]", content)]
        if None in parts:
            raise ConfigError(f"{_FIELD}: a message holds more than text; policies read only text")
        return "".join(part for part in parts if part is not None)
    return content or ""


def _part(part: Any) -> str | None:
    get = part.get if isinstance(part, Mapping) else lambda name: getattr(part, name, None)
    return get("text") if get("type") == "text" else None
