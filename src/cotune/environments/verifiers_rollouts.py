"""Rollouts of `verifiers.v1`: the environment's own loop sends requests, the policy answers them.

Such an environment runs a program, its harness, against a served model, and records what passes
through a server of its own. In training, that server asks the policy instead of a model's endpoint.

Needs `verifiers`; imported only by `environments.verifiers`.
"""

# pyright: basic
# verifiers has no types that say what it takes.

import asyncio
import json
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Literal

import verifiers.v1 as vf
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.interception import server

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.tools import OUT_OF_TURNS, answer_of, name_action
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, ToolCall, Trajectory
from cotune.utils.background import BackgroundLoop
from cotune.utils.text import named, one_line

_FIELD = "environment.environment"
_MODEL = "policy"  # the model's name in requests
MAX_TASKS = 10_000  # of a taskset that never ends
_REFUSALS = 4  # refused requests after which a rollout is cancelled
_PATIENCE = 2.0  # seconds in which rollouts end that are dropped

_REWRITES = (
    "it rewrites the conversation, or a row's prompt when a rollout begins; policies are trained on one that "
    "only grows: choose another environment, or put what it adds into the data"
)
_MESSAGES = {"user": vf.UserMessage, "assistant": vf.AssistantMessage, "system": vf.SystemMessage}

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


def _resolve(config: Any, resolve: Any = server.resolve_client) -> Any:
    return _POLICIES if isinstance(config, _PolicyConfig) else resolve(config)


# Where the server makes its client from a config; it takes no client itself.
server.resolve_client = _resolve


class VerifiersEnvironment(TaskEnvironment):
    """See `environments.verifiers.from_verifiers`.

    Each episode is one of the environment's own rollouts, on an event loop in the background, which
    waits for the policy's next turn. Timeouts are the environment's own.

    Args:
        vf_tasks: the environment's tasks by name.
        tasks: the same as questions, by split; the column "task" is the name.
    """

    takes_any_tasks = False
    parallel_responses = 256

    def __init__(
        self,
        environment: Any,
        vf_tasks: Mapping[str, Any],
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str,
        prompt_format: PromptFormat,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        self._environment = environment
        self._vf_tasks = vf_tasks
        self._rollouts: dict[int, Rollout] = {}
        self._loop = BackgroundLoop()
        self._serve()
        fields = {"name", "description", "parameters"}
        self.tools = tuple(
            {"type": "function", "function": tool.model_dump(include=fields)}
            for tool in self._loop.run(self._read_tools())
        )

    def _serve(self) -> None:
        """Bring up what the environment's rollouts share, until this and its copies are garbage-collected."""
        end = asyncio.Event()
        ready: Future[asyncio.AbstractEventLoop] = Future()
        serving = self._loop.submit(_serving(self._environment, self._rollouts, ready, end))
        weakref.finalize(self._loop, _end, ready.result(), end, serving)

    async def _read_tools(self) -> Sequence[Any]:
        """Return the tools that a first rollout offers."""
        rollout = Rollout(self._environment, next(iter(self._vf_tasks.values())), [], [])
        request = await rollout.next_request()
        output = await rollout.end()
        if request is None:
            raise ConfigError(f"{_FIELD}: a rollout ends without a request ({output.error})")
        return request[1] or ()

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Give each rollout the policy's turn; the next request of its loop is the observation.

        Raises:
            ConfigError: a rollout cannot be trained on: it rewrites the conversation, changes its
                tools, or shows images.
        """

        async def respond_to_all() -> list[Response]:
            return list(await asyncio.gather(*map(self._answer, actions)))

        return self._loop.run(respond_to_all())

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the environment's task; 0 if the environment broke."""
        return float(self._output(trajectory).reward), answer_of(trajectory)

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the values of the task's rewards and metrics, by name."""
        return dict(self._output(trajectory).parts)

    def _output(self, trajectory: Trajectory) -> "_Output":
        rollout = self._rollouts.get(trajectory.row)
        return _Output() if rollout is None else self._loop.run(rollout.end())

    async def _answer(self, action: Action) -> Response:
        try:
            if not action.turns:
                if (interrupted := self._rollouts.pop(action.row, None)) is not None:
                    await interrupted.drop()
                prompt = self.messages(action.task, action.prompt)
                prompted = _with_prompt(self._vf_tasks[action.task.columns["task"]], prompt)
                names = [tool["function"]["name"] for tool in self.tools]
                self._rollouts[action.row] = Rollout(self._environment, prompted, prompt, names)
            return await self._rollouts[action.row].answer(action)
        except ConfigError:
            raise
        # Of the user's environment; they end the episode only.
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
            return Response(failed=True, action="invalid", error=named(error, 120))


@dataclass(frozen=True)
class _Output:
    """The end of a rollout: its reward, rewards and metrics by name, and what broke it; "" if nothing did."""

    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    error: str = ""


class Rollout:
    """One episode of an environment with one agent.

    Args:
        task: one of the environment's tasks, with the prompt.
        prompt: the messages that it must start from.
        tool_names: names of the tools that it must offer.
    """

    def __init__(
        self, environment: Any, task: Any, prompt: Sequence[Chat], tool_names: Sequence[str]
    ) -> None:
        self._tool_names = tool_names
        self._requests: asyncio.Queue[tuple[list[Any], Sequence[Any] | None]] = asyncio.Queue()
        self._reply: asyncio.Future[Any] | None = None
        # What the next request must begin with: the prompt, then what the last request had.
        self._history: list[Chat] = [dict(message) for message in prompt]
        self._call_names: dict[str, str] = {}
        self._trace: Any = None
        self._created = int(time.time())
        self._task = asyncio.ensure_future(self._run(environment, task))
        # A dropped rollout's exception is never retrieved otherwise.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def ask(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> Any:
        """Return the policy's reply to a request of the environment."""
        self._reply = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((list(messages), tools))
        return await self._reply

    async def next_request(self) -> tuple[list[Any], Sequence[Any] | None] | None:
        """Return the next request, its messages and tools; None if the rollout has ended."""
        waiting = asyncio.ensure_future(self._requests.get())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        return None

    async def answer(self, action: Action) -> Response:
        """Pass the policy's turn to the loop, and return its next request or the episode's end."""
        if not action.turns:
            request = await self.next_request()
            if request is not None and self._new_messages(request):
                raise ConfigError(f"{_FIELD}: {_REWRITES}")
        if not self._task.done():
            calls = action.calls.calls
            self._send(len(action.turns), action.calls.text if calls else action.text, calls)
            request = await self.next_request()
            if request is not None and action.last:
                await self.end()
                return Response(done=True, action=self._name(action), error=OUT_OF_TURNS)
            if request is not None:
                # After the policy's turn.
                messages = self._new_messages(request)[1:]
                if not messages or any(m["role"] == "assistant" for m in messages):
                    raise ConfigError(
                        f"{_FIELD}: it answers a turn with nothing, or with a turn of the policy's; "
                        "expected messages of a tool or the user"
                    )
                error = action.calls.error
                return Response(action=self._name(action), error=error, messages=tuple(messages))
        output = self._task.result()
        if output.error:
            return Response(failed=True, action=self._name(action), error=output.error)
        return Response(done=True, action=self._name(action), error=action.calls.error)

    async def end(self) -> _Output:
        """Return the rollout's output. If it still sends requests, it is scored as it stands."""
        for _ in range(_REFUSALS):
            if self._task.done():
                break
            if self._trace is not None:
                self._trace.stop("limits")
            self._send(0, "")  # not shown to the harness
            await self.next_request()
        if not self._task.done():
            self._task.cancel()
            return _Output()
        if self._task.cancelled():
            return _Output(error="cancelled")
        error = self._task.exception()
        return self._task.result() if error is None else _Output(error=named(error, 120))

    async def drop(self) -> None:
        """Cancel the rollout if it still runs."""
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=_PATIENCE)

    async def _run(self, environment: Any, task: Any) -> _Output:
        context = vf.ModelContext(model=_MODEL, client=_PolicyConfig(multiplex=1))
        episode = await environment.run_episode(task, context, on_trace=self._keep_trace)
        trace: Any = self._trace  # the field is None until an agent runs
        errors = [*episode.errors, *getattr(trace, "errors", ())]
        if errors:
            return _Output(error=one_line(f"{errors[0].type}: {errors[0].message}")[:120])
        rewards = {name: getattr(reward, "value", None) for name, reward in trace.rewards.items()}
        values = {**trace.metrics, **rewards}
        parts = {name: float(value) for name, value in values.items() if value is not None}
        return _Output(trace.reward, parts)

    def _keep_trace(self, trace: Any) -> None:
        self._trace = trace
        _POLICIES.open[trace.id] = self

    def _name(self, action: Action) -> str:
        """Return the name of a turn's action: an answer, its tool, or the number of calls."""
        names = [call.name for call in action.calls.calls]
        if not names:
            return "invalid" if action.calls.error else "answer"
        return name_action(action, [name for name in names if name in self._tool_names])

    def _send(self, turn: int, text: str, calls: Sequence[ToolCall] = ()) -> None:
        """Answer the request that waits with a turn, as a server would send it."""
        tool_calls = [
            vf.ToolCall(id=f"call_{turn}_{i}", name=c.name, arguments=json.dumps(dict(c.arguments)))
            for i, c in enumerate(calls)
        ]
        self._call_names = {call.id: call.name for call in tool_calls}
        response = vf.Response(
            id=f"turn-{turn}",
            created=self._created,
            model=_MODEL,
            message=vf.AssistantMessage(content=text, tool_calls=tool_calls or None),
            finish_reason="tool_calls" if tool_calls else "stop",
        )
        response.raw = serialize_completion(response, _MODEL)
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(response)

    def _new_messages(self, request: tuple[list[Any], Sequence[Any] | None]) -> list[Chat]:
        """Return the messages of a request that the one before did not have; ConfigError if it changed others."""
        messages, tools = request
        names = [tool.name for tool in tools or ()]
        if names != self._tool_names:
            raise ConfigError(
                f"{_FIELD}: a rollout offers the tools {', '.join(names) or '(none)'}, the "
                f"environment {', '.join(self._tool_names) or '(none)'}; expected the same in all"
            )
        chats = [_chat(message, self._call_names) for message in messages]
        length = len(self._history)
        pairs = [
            [(m["role"], m["content"]) for m in part] for part in (chats[:length], self._history)
        ]
        if pairs[0] != pairs[1]:
            raise ConfigError(f"{_FIELD}: {_REWRITES}")
        self._history = chats
        return chats[length:]


def load(id: str, arguments: Mapping[str, Any]) -> Any:
    """Load the environment of an installed taskset by its id; arguments are its config's fields."""
    taskset = {"id": id, **arguments.get("taskset", {})}
    return vf.load_environment(vf.resolve_env_config({**arguments, "taskset": taskset}))


def check(environment: Any) -> None:
    """Raise ConfigError for an environment that a policy cannot be trained in."""
    kind = type(environment).__name__
    if not isinstance(environment, vf.Env):
        raise ConfigError(
            f"{_FIELD} is {kind}; expected an Env of verifiers.v1: port it, or train in it as an environment "
            "class of yours"
        )
    agents = list(environment.config.agent_harnesses())
    if len(agents) != 1:
        raise ConfigError(
            f"{_FIELD}: {kind} has the agents {', '.join(agents)}; expected one, which is the policy"
        )


def questions_of(tasks: Mapping[str, Any]) -> tuple[list[tuple[Task, str]], str]:
    """Return tasks, each with its prompt as a text, and the system prompt that all share; "" for none.

    A system prompt that all share is left out of the tasks, as the instruction takes its place.
    """
    prompts = [_prompt(name, task.data) for name, task in tasks.items()]
    systems = {p[0]["content"] if p[0]["role"] == "system" else "" for p in prompts}
    shared = systems.pop() if len(systems) == 1 else ""
    questions: list[tuple[Task, str]] = []
    for (name, vf_task), prompt in zip(tasks.items(), prompts, strict=True):
        *context, question = prompt[1:] if shared else prompt
        answer = getattr(vf_task.data, "answer", None)
        task = Task(
            f"train-{name}",
            question["content"],
            (answer,) if isinstance(answer, str) and answer else (),
            context=tuple((message["role"], message["content"]) for message in context),
            chat=True,
            columns={**vf_task.data.model_dump(mode="json", exclude_none=True), "task": name},
        )
        questions.append((task, json.dumps(prompt, sort_keys=True)))
    return questions, shared


def _prompt(name: str, data: Any) -> list[Chat]:
    """Return the messages of a task; ConfigError unless they are texts that end with the user's."""
    text = isinstance(data.prompt, str)
    messages: list[Any] = [vf.UserMessage(content=data.prompt)] if text else list(data.prompt or ())
    if (
        not messages
        or messages[-1].role != "user"
        or any(m.role not in _MESSAGES or getattr(m, "tool_calls", None) for m in messages)
    ):
        roles = ", ".join(message.role for message in messages) or "none"
        raise ConfigError(
            f"{_FIELD}: the prompt of task {name} has messages of: {roles}; expected texts without calls "
            "of tools, the user's at the end"
        )
    if data.system_prompt:
        messages.insert(0, vf.SystemMessage(content=data.system_prompt))
    return [_chat(message, {}) for message in messages]


def _with_prompt(task: Any, prompt: Sequence[Chat]) -> Any:
    """Return a task that is asked by a prompt, whose first message may be the system's."""
    has_system = prompt[0]["role"] == "system"
    messages = [_MESSAGES[m["role"]](content=m["content"]) for m in prompt[has_system:]]
    is_text = len(messages) == 1 and isinstance(task.data.prompt, str)
    data = {
        "prompt": messages[0].content if is_text else messages,
        "system_prompt": prompt[0]["content"] if has_system else None,
    }
    return type(task)(task.data.model_copy(update=data), task.config)


async def _serving(
    environment: Any,
    rollouts: Mapping[int, Rollout],
    ready: "Future[asyncio.AbstractEventLoop]",
    end: asyncio.Event,
) -> None:
    """Serve an environment until the end, and drop the rollouts that still run then."""
    try:
        async with environment.serving():
            ready.set_result(asyncio.get_running_loop())
            await end.wait()
            for rollout in rollouts.values():
                await rollout.drop()
    except Exception as error:  # noqa: BLE001 - of the user's environment
        if not ready.done():
            reason = f"what its rollouts share does not start ({named(error)})"
            ready.set_exception(ConfigError(f"{_FIELD}: {reason}"))


def _end(loop: asyncio.AbstractEventLoop, end: asyncio.Event, serving: "Future[None]") -> None:
    if not serving.done():
        loop.call_soon_threadsafe(end.set)
        wait([serving], _PATIENCE)


def _chat(message: Any, call_names: Mapping[str, str]) -> Chat:
    """Return a message for the chat template; a tool's message has its name."""
    content = message.content or ""
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
        if any(part.get("type") != "text" for part in parts):
            raise ConfigError(f"{_FIELD}: a message holds more than text; policies read only text")
        content = "".join(part["text"] for part in parts)
    chat = {"role": str(message.role), "content": content}
    if chat["role"] == "tool":
        chat["name"] = call_names.get(message.tool_call_id, "tool")
    return chat
