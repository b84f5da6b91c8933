"""Environments of verifiers' classic interface, which its releases before 0.4 have.

Needs `verifiers`; imported only by `environments.verifiers`.
"""

# pyright: basic
# verifiers has no types that say what it takes.

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.legacy.clients.client import Client
from verifiers.legacy.envs.multiturn_env import MultiTurnEnv
from verifiers.legacy.errors import OverlongPromptError
from verifiers.legacy.types import Response, ResponseMessage, Tool, ToolCall
from verifiers.legacy.utils.env_utils import load_environment

from cotune.environments.verifiers_rollouts import MODEL, Chat, Requests, Rollout, schema_of
from cotune.errors import ConfigError
from cotune.types import Task
from cotune.utils.background import BackgroundLoop

_FIELD = "environment.environment"


class ClassicApi:
    """See `verifiers_rollouts.Api`."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.tools = tuple(schema_of(tool) for tool in environment.tool_defs or ())

    def start(self, task: Task, prompt: Sequence[Chat]) -> "ClassicRollout":
        row = {"example_id": 0, **task.own_columns(), "prompt": prompt}
        policy = _Policy()
        return ClassicRollout(
            policy.requests,
            asyncio.ensure_future(self._environment.run_rollout(row, policy, MODEL, {})),
            prompt,
            [tool["function"]["name"] for tool in self.tools],
        )


class ClassicRollout(Rollout):
    def _response(self, turn: int, text: str, calls: Sequence[tuple[str, str, str]]) -> Response:
        made = [ToolCall(id=id, name=name, arguments=given) for id, name, given in calls]
        message = ResponseMessage(
            content=text,
            tool_calls=made or None,
            finish_reason="tool_calls" if made else "stop",
            is_truncated=False,
        )
        return Response(id=f"turn-{turn}", created=0, model=MODEL, message=message)

    def _refuse(self) -> None:
        self._requests.refuse(OverlongPromptError("the episode's limits are reached"))


class _Policy(Client[Any, Any, Any, Any]):
    """The client that an environment sees instead of a served model's; one for each rollout.

    The base class calls `get_native_response` with the results of the `to_native` methods.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.requests = Requests()

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: Mapping[str, Any],
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        return await self.requests.ask(prompt, tools)

    def setup_client(self, config: Any) -> Any:
        return None

    async def to_native_tool(self, tool: Tool) -> Tool:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def raise_from_native_response(self, response: Any) -> None:
        return

    async def from_native_response(self, response: Response) -> Response:
        return response

    async def close(self) -> None:
        return


def load(id: str, arguments: Mapping[str, Any]) -> Any:
    """Load an installed environment by its id, like `vf-eval`."""
    return load_environment(id, **arguments)


def check(environment: Any) -> None:
    """Raise ConfigError for an environment that a policy cannot be trained in."""
    kind = type(environment).__name__
    if not isinstance(environment, MultiTurnEnv):
        raise ConfigError(
            f"{_FIELD} is {kind}; expected a MultiTurnEnv (SingleTurnEnv, ToolEnv, …), whose turns "
            "are this process's to sample, or an Env of verifiers.v1"
        )
    if type(environment).rollout is not MultiTurnEnv.rollout:
        raise ConfigError(f"{_FIELD}: {kind} has a rollout() of its own; expected MultiTurnEnv's")
    if environment.message_type != "chat":
        raise ConfigError(f"{_FIELD}: {kind} completes texts; expected chat messages")
    if environment.requires_group_rollouts or environment.provides_advantages:
        raise ConfigError(
            f"{_FIELD}: the rubric of {kind} scores groups; expected reward functions of one rollout"
        )
    if not environment.score_rollouts:
        raise ConfigError(f"{_FIELD}: {kind} does not score; make it with score_rollouts=True")


def api(environment: Any, tasks: Mapping[str, Sequence[Task]], loop: BackgroundLoop) -> ClassicApi:
    """Return the interface of an environment; ConfigError if rows have tools of their own."""
    own = next((row for rows in tasks.values() for row in rows if _own_tools(row)), None)
    if own is not None:
        raise ConfigError(
            f"{_FIELD}: row {own.id} has its own tools; expected the same for all rows"
        )
    return ClassicApi(environment)


def rows(environment: Any) -> tuple[list[Any], list[Any] | None, str]:
    """Return training rows, rows for evaluation (None without any) and the system prompt."""
    held_out = None
    if environment.eval_dataset_source is not None or environment.eval_dataset is not None:
        held_out = list(environment.get_eval_dataset())
    return list(environment.get_dataset()), held_out, environment.system_prompt or ""


def _own_tools(task: Task) -> bool:
    info = task.columns.get("info")
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except ValueError:
            return False
    return isinstance(info, Mapping) and "tool_defs" in info
