"""Environments of `verifiers.v1`: verifiers 0.3 has it beside its classic interface, 0.4 has nothing else.

Such an environment runs a program, its harness, against a served model, and records what passes
through a server of its own. In training, that server asks the policy instead of a model's endpoint.

Needs `verifiers`; imported only by `environments.verifiers`.
"""

# pyright: basic
# verifiers has no types that say what it takes.

import asyncio
import itertools
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

import verifiers.v1 as vf
from verifiers.v1.clients.train import serialize_completion
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.interception import server
from verifiers.v1.runtimes import runtime_is_local
from verifiers.v1.utils.prime import ensure_prime_auth

from cotune.environments.verifiers_rollouts import MODEL, Chat, Requests, Rollout, schema_of
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.background import BackgroundLoop
from cotune.utils.text import named

_FIELD = "environment.environment"
_MOST_TASKS = 10_000  # of a taskset that never ends


class _PolicyConfig(vf.TrainClientConfig):
    """Names the policy in place of an endpoint. A training client's replies are never streamed."""

    base_url: str = "http://policy.invalid"
    api_key_var: str = "COTUNE_NO_KEY"
    policy: Literal[True] = True


class _Policies(vf.Client):
    """The client of all rollouts in this process; a request's session is its rollout's trace."""

    def __init__(self) -> None:
        self.open: weakref.WeakValueDictionary[str, V1Rollout] = weakref.WeakValueDictionary()

    async def get_response(
        self, dialect: Any, body: Any, *args: Any, session_id: str | None = None, **kwargs: Any
    ) -> Any:
        rollout = self.open.get(session_id or "")
        if rollout is None:
            raise vf.ProviderError("the rollout has ended", status_code=400)
        if not isinstance(dialect, ChatDialect):
            raise vf.ProviderError("the policy answers only chat completions", status_code=400)
        request = dialect.parse_request(body)
        return await rollout.asks(request.messages, request.tools)


_POLICIES = _Policies()


def _resolve(config: Any, given: Any = server.resolve_client) -> Any:
    return _POLICIES if isinstance(config, _PolicyConfig) else given(config)


# Where the server makes its client from a config; it takes no client itself.
server.resolve_client = _resolve


class V1Api:
    """See `verifiers_rollouts.Api`. The environment is served as long as this lives."""

    def __init__(self, environment: Any, tasks: Mapping[str, Any], loop: BackgroundLoop) -> None:
        self._environment, self._tasks = environment, tasks
        self.tools: tuple[Mapping[str, Any], ...] = ()
        loop.run(_serve(self, environment))
        first = next(iter(tasks))
        self.tools = tuple(map(schema_of, loop.run(self._offered(first))))

    def start(self, task: Task, prompt: Sequence[Chat]) -> "V1Rollout":
        return V1Rollout(
            self._environment,
            _with_prompt(self._tasks[task.columns["task"]], prompt),
            prompt,
            [tool["function"]["name"] for tool in self.tools],
        )

    async def _offered(self, name: str) -> Sequence[Any]:
        return await V1Rollout(self._environment, self._tasks[name], [], None).first()


class V1Rollout(Rollout):
    """One episode of an environment with one agent."""

    def __init__(
        self, environment: Any, task: Any, prompt: Sequence[Chat], offered: Sequence[str] | None
    ) -> None:
        self._trace: Any = None
        self._begun = int(time.time())
        run = asyncio.ensure_future(self._run(environment, task))
        super().__init__(Requests(), run, prompt, offered)

    async def asks(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> Any:
        return await self._requests.ask(messages, tools)

    async def _run(self, environment: Any, task: Any) -> Mapping[str, Any]:
        context = vf.ModelContext(model=MODEL, client=_PolicyConfig(multiplex=1))
        episode = await environment.run_episode(task, context, on_trace=self._traced)
        trace = self._trace
        errors = [*episode.errors, *(() if trace is None else trace.errors)]
        if errors or trace is None:
            reason = f"{errors[0].type}: {errors[0].message}" if errors else "no agent ran"
            return {"error": RuntimeError(reason)}
        values = {
            name: reward.value for name, reward in trace.rewards.items() if reward is not None
        }
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        late = bool(getattr(trace, "is_timeout", False))
        return {
            "reward": trace.reward,
            "metrics": {**metrics, **values},
            "stop_condition": "timeout_reached" if late else trace.stop_condition,
        }

    def _traced(self, trace: Any) -> None:
        self._trace = trace
        _POLICIES.open[trace.id] = self

    def _response(self, turn: int, text: str, calls: Sequence[tuple[str, str, str]]) -> Any:
        made = [vf.ToolCall(id=id, name=name, arguments=given) for id, name, given in calls]
        response = vf.Response(
            id=f"turn-{turn}",
            created=self._begun,
            model=MODEL,
            message=vf.AssistantMessage(content=text, tool_calls=made or None),
            finish_reason="tool_calls" if made else "stop",
        )
        response.raw = serialize_completion(response, MODEL)
        return response

    def _refuse(self) -> None:
        # A stopped trace is scored as it stands; the reply is not shown to the harness.
        if self._trace is not None:
            self._trace.stop("limits")
        self._requests.answer(self._response(0, "", ()))


async def _serve(api: V1Api, environment: Any) -> None:
    """Bring up what the environment's rollouts share, until `api` is garbage-collected."""
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
    weakref.finalize(api, loop.call_soon_threadsafe, end.set)


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
            f"{version('verifiers')} has"
        )
    agents = list(environment.config.agent_harnesses())
    if len(agents) != 1:
        raise ConfigError(
            f"{_FIELD}: {kind} has the agents {', '.join(agents)}; expected one, which is the policy"
        )
    runtime = getattr(environment.config, agents[0]).runtime
    if not runtime_is_local(runtime):
        try:
            ensure_prime_auth()  # otherwise it would end the process later
        except SystemExit as error:
            raise ConfigError(
                f"{_FIELD}: its agent runs in the runtime {runtime.type} ({error}); or let it run here "
                f"by environment.args: {{{agents[0]}: {{runtime: {{type: docker}}}}}}"
            ) from error


def rows(environment: Any) -> tuple[list[Any], list[Any] | None, str]:
    """Return the taskset's tasks as rows; there are none for evaluation, and no common prompt."""
    found = [
        _row(str(i), task)
        for i, task in enumerate(itertools.islice(environment.taskset, _MOST_TASKS))
    ]
    return found, None, ""


def api(environment: Any, tasks: Mapping[str, Sequence[Task]], loop: BackgroundLoop) -> V1Api:
    """Return the interface of an environment, which is served from here on."""
    known = itertools.islice(environment.taskset, _MOST_TASKS)
    return V1Api(environment, {str(i): task for i, task in enumerate(known)}, loop)


def _row(name: str, task: Any) -> dict[str, Any]:
    data = task.data
    prompt = data.prompt
    if prompt is None:
        raise ConfigError(
            f"{_FIELD}: task {name} has no prompt; expected one: the user cannot speak first"
        )
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [m if isinstance(m, dict) else m.model_dump(exclude_none=True) for m in asked]
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    fields = data.model_dump(mode="json", exclude_none=True)
    return {**fields, "prompt": [*system, *messages], "task": name}


def _with_prompt(task: Any, prompt: Sequence[Chat]) -> Any:
    """Return a task that is asked by a prompt, whose first message may be the system's."""
    system, rest = None, list(prompt)
    if rest[0]["role"] == "system":
        system = rest.pop(0)["content"]
    kinds = {"user": vf.UserMessage, "assistant": vf.AssistantMessage, "system": vf.SystemMessage}
    messages = [kinds[m["role"]](content=m["content"]) for m in rest]
    alone = len(rest) == 1 and isinstance(task.data.prompt, str)
    data = {"prompt": rest[0]["content"] if alone else messages, "system_prompt": system}
    return type(task)(task.data.model_copy(update=data), task.config)
