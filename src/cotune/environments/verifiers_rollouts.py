"""Rollouts of `verifiers.v1`: the environment's own loop sends requests, the policy answers them.

Such an environment runs a program, its harness, against a served model, and records what passes
through a server of its own. In training, that server asks the policy instead of a model's endpoint.

Needs `verifiers`; imported only by `environments.verifiers`.
"""

# pyright: basic
# verifiers has no types that say what it takes.

import asyncio
import itertools
import json
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

import verifiers.v1 as vf
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.interception import server

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.tools import OUT_OF_TURNS, answer_of, named_action
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Trajectory
from cotune.utils.background import BackgroundLoop
from cotune.utils.text import named, one_line

_FIELD = "environment.environment"
_MODEL = "policy"  # the model's name in requests
_MOST_TASKS = 10_000  # of a taskset that never ends
_REFUSALS = 4  # refused requests after which a rollout is cancelled
_PATIENCE = 2.0  # seconds in which a loop that is not blocked answers

_MESSAGES = {
    "user": vf.UserMessage,
    "assistant": vf.AssistantMessage,
    "system": vf.SystemMessage,
}

Chat = dict[str, str]


class _PolicyConfig(vf.TrainClientConfig):
    """Names the policy in place of an endpoint. A training client's replies are never streamed."""

    base_url: str = "http://policy.invalid"
    api_key_var: str = "COTUNE_NO_KEY"
    policy: Literal[True] = True


class _Policies(vf.Client):
    """The client of all rollouts in this process; a request's session is its rollout's trace."""

    def __init__(self) -> None:
        self.open: weakref.WeakValueDictionary[str, Rollout] = weakref.WeakValueDictionary()

    async def get_response(
        self, dialect: Any, body: Any, *args: Any, session_id: str | None = None, **kwargs: Any
    ) -> Any:
        rollout = self.open.get(session_id or "")
        if rollout is None:
            raise vf.ProviderError("the rollout has ended", status_code=400)
        if not isinstance(dialect, ChatDialect):
            raise vf.ProviderError("the policy answers only chat completions", status_code=400)
        request = dialect.parse_request(body)
        return await rollout.ask(request.messages, request.tools)


_POLICIES = _Policies()


def _resolve(config: Any, given: Any = server.resolve_client) -> Any:
    return _POLICIES if isinstance(config, _PolicyConfig) else given(config)


# Where the server makes its client from a config; it takes no client itself.
server.resolve_client = _resolve


class VerifiersEnvironment(TaskEnvironment):
    """See `environments.verifiers.from_verifiers`.

    Each episode is one of the environment's own rollouts, on an event loop in the background, which
    waits for the policy's next turn. Timeouts are the environment's own.
    """

    takes_any_tasks = False

    def __init__(
        self,
        served: "Served",
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str,
        prompt_format: PromptFormat,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        self._served, self._loop = served, served.loop
        self._rollouts: dict[int, Rollout] = {}
        # If a run ends before its episodes, their tasks must not warn at exit.
        weakref.finalize(self, _end, self._loop, self._rollouts)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._served.tools

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Give each rollout the policy's turn; the next request of its loop is the observation.

        Raises:
            ConfigError: a rollout cannot be trained on: it rewrites the conversation, changes its
                tools, or shows images.
        """
        return self._loop.run(self._respond(actions))

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the environment's task; 0 if the environment broke."""
        reward = self._output(trajectory).get("reward", 0.0)
        if not math.isfinite(reward):
            raise ConfigError(
                f"{_FIELD}: it gave the reward {reward} for task {trajectory.task.id}; expected a "
                "finite number"
            )
        return float(reward), answer_of(trajectory)

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the values of the task's rewards and metrics, by name."""
        metrics = self._output(trajectory).get("metrics") or {}
        return {name: float(value) for name, value in metrics.items()}

    def _output(self, trajectory: Trajectory) -> Mapping[str, Any]:
        rollout = self._rollouts.get(trajectory.row)
        return {} if rollout is None else self._loop.run(rollout.ended())

    async def _respond(self, actions: Sequence[Action]) -> list[Response]:
        return list(await asyncio.gather(*(self._answer(action) for action in actions)))

    async def _answer(self, action: Action) -> Response:
        try:
            if not action.turns:
                if (left := self._rollouts.pop(action.row, None)) is not None:
                    await left.drop()
                prompt = self.messages(action.task, action.prompt)
                self._rollouts[action.row] = self._served.start(action.task, prompt)
            return await self._rollouts[action.row].answer(action)
        except ConfigError:
            raise
        # Of the user's environment; they end the episode only.
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            return Response(failed=True, action="invalid", error=named(error, 120))


class Served:
    """An environment whose rollouts can start; it is served as long as this lives.

    Args:
        environment: the environment.
        tasks: as `read_tasks` returns them.

    Attributes:
        tools: the tools that it offers, for chat templates.
    """

    def __init__(self, environment: Any, tasks: Mapping[str, Any]) -> None:
        self.loop = BackgroundLoop()
        self._environment, self._tasks = environment, tasks
        self.loop.run(_serve(self, environment))
        fields = {"name", "description", "parameters"}
        self.tools: tuple[Mapping[str, Any], ...] = tuple(
            {"type": "function", "function": tool.model_dump(include=fields)}
            for tool in self.loop.run(self._offered())
        )

    def start(self, task: Task, prompt: Sequence[Chat]) -> "Rollout":
        """Start a rollout of a task from a prompt, on the event loop that calls this."""
        asked = _with_prompt(self._tasks[task.columns["task"]], prompt)
        names = [tool["function"]["name"] for tool in self.tools]
        return Rollout(self._environment, asked, prompt, names)

    async def _offered(self) -> Sequence[Any]:
        return await Rollout(self._environment, self._tasks["0"], [], None).first()


class Rollout:
    """One episode of an environment with one agent.

    Args:
        environment: the environment.
        task: one of its tasks, with the prompt.
        prompt: the messages that it must start from.
        offered: names of the tools that it must offer; None until the first request.
    """

    def __init__(
        self, environment: Any, task: Any, prompt: Sequence[Chat], offered: Sequence[str] | None
    ) -> None:
        self._prompt, self._offered = prompt, offered
        self._requests: asyncio.Queue[tuple[list[Any], Sequence[Any] | None]] = asyncio.Queue()
        self._reply: asyncio.Future[Any] | None = None
        self._seen: list[Any] = []
        self._calls: dict[str, str] = {}
        self._trace: Any = None
        self._begun = int(time.time())
        self._task = asyncio.ensure_future(self._run(environment, task))
        # A dropped rollout's exception is never retrieved otherwise.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def ask(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> Any:
        """Return the policy's reply to a request of the environment."""
        self._reply = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((list(messages), tools))
        return await self._reply

    async def first(self) -> Sequence[Any]:
        """Return the tools that the first request offers, and end the rollout."""
        request = await self._request()
        if request is None:
            raise ConfigError(
                f"{_FIELD}: a rollout ends without a request ({_error_of(self._task)})"
            )
        await self.ended()
        return request[1] or ()

    async def answer(self, action: Action) -> Response:
        """Pass the policy's turn to the loop, and return its next request or the episode's end."""
        if not self._seen:
            self._seen = await self._asked() or []
            if self._seen and [_chat(m, {}) for m in self._seen] != [dict(m) for m in self._prompt]:
                raise ConfigError(
                    f"{_FIELD}: it changes a row's prompt when a rollout begins; expected the row's "
                    "own: put what it adds into the data"
                )
        if self._task.done():
            return self._last(action)
        self._send(self._turn(action))
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
        """Return the rollout's output: reward, metrics, error and stop condition.

        If it still sends requests, its trace is stopped, which is scored as it stands.
        """
        for _ in range(_REFUSALS):
            if self._task.done():
                broke = self._task.cancelled() or self._task.exception() is not None
                return {} if broke else self._task.result()
            if self._trace is not None:
                self._trace.stop("limits")
            # Not shown to the harness.
            self._send(self._response(0, "", ()))
            await self._asked()
        self._task.cancel()
        return {}

    async def drop(self) -> None:
        """Cancel the rollout if it still runs."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_PATIENCE)

    async def _run(self, environment: Any, task: Any) -> Mapping[str, Any]:
        context = vf.ModelContext(model=_MODEL, client=_PolicyConfig(multiplex=1))
        episode = await environment.run_episode(task, context, on_trace=self._traced)
        trace = self._trace
        errors = [*episode.errors, *(() if trace is None else trace.errors)]
        if errors or trace is None:
            reason = f"{errors[0].type}: {errors[0].message}" if errors else "no agent ran"
            return {"error": RuntimeError(reason)}
        rewards = {
            name: reward.value for name, reward in trace.rewards.items() if reward is not None
        }
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return {
            "reward": trace.reward,
            "metrics": {**metrics, **rewards},
            "late": bool(getattr(trace, "is_timeout", False)),
        }

    def _traced(self, trace: Any) -> None:
        self._trace = trace
        _POLICIES.open[trace.id] = self

    def _send(self, response: Any) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(response)

    async def _request(self) -> tuple[list[Any], Sequence[Any] | None] | None:
        """Return the loop's next request, its messages and tools; None if it has ended."""
        waiting = asyncio.ensure_future(self._requests.get())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        return None

    async def _asked(self) -> list[Any] | None:
        """Return the messages of the next request, whose tools must be those of the first one."""
        request = await self._request()
        if request is None:
            return None
        messages, tools = request
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
        error = "the environment's time is up" if output["late"] else action.calls.error
        return Response(done=True, action=self._named(action), error=error)

    def _named(self, action: Action) -> str:
        """Return the name of a turn's action: an answer, its tool, or the number of calls."""
        names = [call.name for call in action.calls.calls]
        if not names:
            return "invalid" if action.calls.error else "answer"
        return named_action(action, [name for name in names if name in (self._offered or ())])

    def _turn(self, action: Action) -> Any:
        calls = [
            (f"call_{len(action.turns)}_{i}", call.name, json.dumps(dict(call.arguments)))
            for i, call in enumerate(action.calls.calls)
        ]
        self._calls = {id: name for id, name, _ in calls}
        return self._response(len(action.turns), action.calls.said if calls else action.text, calls)

    def _response(self, turn: int, text: str, calls: Sequence[tuple[str, str, str]]) -> Any:
        """Return a turn as a server would send it; calls are (id, name, arguments as JSON)."""
        tool_calls = [vf.ToolCall(id=id, name=name, arguments=json) for id, name, json in calls]
        response = vf.Response(
            id=f"turn-{turn}",
            created=self._begun,
            model=_MODEL,
            message=vf.AssistantMessage(content=text, tool_calls=tool_calls or None),
            finish_reason="tool_calls" if tool_calls else "stop",
        )
        response.raw = serialize_completion(response, _MODEL)
        return response

    def _new(self, asked: list[Any]) -> list[Chat]:
        """Return the messages that the loop has added after the policy's turn."""
        length = len(self._seen) + 1
        before = [_plain(m) for m in self._seen]
        if [_plain(m) for m in asked[: length - 1]] != before or len(asked) < length:
            raise ConfigError(
                f"{_FIELD}: it rewrites the conversation between turns; policies are trained on one "
                "that only grows: choose another environment"
            )
        self._seen = asked
        new = [_chat(m, self._calls) for m in asked[length:]]
        if not new or any(m["role"] == "assistant" for m in new):
            what = "nothing" if not new else "a turn of the policy's"
            raise ConfigError(
                f"{_FIELD}: it answers a turn with {what}; expected messages of a tool or the user"
            )
        return new


def load(id: str, arguments: Mapping[str, Any]) -> Any:
    """Load the environment of an installed taskset by its id; arguments are its config's fields."""
    taskset = {"id": id, **arguments.get("taskset", {})}
    return vf.load_environment(vf.resolve_env_config({**arguments, "taskset": taskset}))


def check(environment: Any) -> None:
    """Raise ConfigError for an environment that a policy cannot be trained in."""
    kind = type(environment).__name__
    if not isinstance(environment, vf.Env):
        raise ConfigError(
            f"{_FIELD} is {kind}; expected an Env of verifiers.v1, which verifiers "
            f"{version('verifiers')} has: port it, or train in it as an environment class of yours"
        )
    agents = list(environment.config.agent_harnesses())
    if len(agents) != 1:
        raise ConfigError(
            f"{_FIELD}: {kind} has the agents {', '.join(agents)}; expected one, which is the policy"
        )


def read_tasks(environment: Any) -> dict[str, Any]:
    """Return the taskset's tasks by their position."""
    tasks = itertools.islice(environment.taskset, _MOST_TASKS)
    return {str(i): task for i, task in enumerate(tasks)}


def questions_of(tasks: Mapping[str, Any]) -> tuple[list[tuple[Task, str]], str]:
    """Return tasks, each with its prompt as a text, and the system prompt that all share; "" for none."""
    prompts = {name: (task.data, _prompt(name, task.data)) for name, task in tasks.items()}
    systems = {p[0]["content"] if p[0]["role"] == "system" else "" for _, p in prompts.values()}
    shared = systems.pop() if len(systems) == 1 else ""
    return [_question(name, *prompt, shared) for name, prompt in prompts.items()], shared


def _prompt(name: str, data: Any) -> list[Chat]:
    """Return the messages of a task; ConfigError for one without a text of the user's at the end."""
    if not data.prompt:
        raise ConfigError(
            f"{_FIELD}: task {name} has no prompt; expected one: the user cannot speak first"
        )
    text = isinstance(data.prompt, str)
    messages: list[Any] = [vf.UserMessage(content=data.prompt)] if text else list(data.prompt)
    if messages[-1].role != "user":
        raise ConfigError(
            f"{_FIELD}: the prompt of task {name} ends with a message of the {messages[-1].role}; "
            "expected the user's"
        )
    if data.system_prompt:
        messages.insert(0, vf.SystemMessage(content=data.system_prompt))
    if any(m.role not in _MESSAGES or getattr(m, "tool_calls", None) for m in messages):
        raise ConfigError(f"{_FIELD}: the prompt of task {name} calls tools; expected only texts")
    return [_chat(message, {}) for message in messages]


def _question(name: str, data: Any, prompt: list[Chat], shared: str) -> tuple[Task, str]:
    """Return a task; the system prompt that all share is left out, as the instruction takes its place."""
    without = prompt[1:] if shared else prompt
    context = tuple((message["role"], message["content"]) for message in without[:-1])
    answer = getattr(data, "answer", None)
    task = Task(
        f"train-{name}",
        without[-1]["content"],
        (answer,) if isinstance(answer, str) and answer else (),
        context=context,
        chat=True,
        columns={**data.model_dump(mode="json", exclude_none=True), "task": name},
    )
    return task, json.dumps(prompt, sort_keys=True)


def _with_prompt(task: Any, prompt: Sequence[Chat]) -> Any:
    """Return a task that is asked by a prompt, whose first message may be the system's."""
    system, rest = None, list(prompt)
    if rest[0]["role"] == "system":
        system = rest.pop(0)["content"]
    messages = [_MESSAGES[m["role"]](content=m["content"]) for m in rest]
    alone = len(rest) == 1 and isinstance(task.data.prompt, str)
    data = {"prompt": rest[0]["content"] if alone else messages, "system_prompt": system}
    return type(task)(task.data.model_copy(update=data), task.config)


async def _serve(served: Served, environment: Any) -> None:
    """Bring up what the environment's rollouts share, until `served` is garbage-collected."""
    loop, ready, end = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    async def serving() -> None:
        async with environment.serving():
            ready.set()
            await end.wait()

    task = asyncio.ensure_future(serving())
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not ready.is_set():
        waiting.cancel()
        error = task.exception()
        reason = named(error) if error else "it ended"
        raise ConfigError(f"{_FIELD}: what its rollouts share does not start ({reason})")
    weakref.finalize(served, loop.call_soon_threadsafe, end.set)


def _end(loop: BackgroundLoop, rollouts: Mapping[int, Rollout]) -> None:
    async def end() -> None:
        for rollout in rollouts.values():
            await rollout.drop()

    if rollouts and loop.answers(_PATIENCE):
        loop.run(end())


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
    if not isinstance(content, list):
        return content or ""
    parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
    if any(part.get("type") != "text" for part in parts):
        raise ConfigError(f"{_FIELD}: a message holds more than text; policies read only text")
    return "".join(part["text"] for part in parts)
