"""Your own typed functions as tools, called through the policy's chat template."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.environment_options import ToolConfig, ToolsOptions
from cotune.environments.tool_calls import spoken
from cotune.environments.tool_functions import Tool, tool_of
from cotune.environments.tool_runner import ToolRunner
from cotune.environments.tool_turns import answered
from cotune.errors import ConfigError
from cotune.types import Action, Response, Task, Trajectory
from cotune.utils.importing import import_object

ToolFunction = Callable[..., Any]


class ToolEnvironment(TaskEnvironment):
    """Questions answered with the help of your functions; reward functions score.

    The policy reads names, types and docstrings of the functions through its chat template, and
    calls them in the template's own form, several in a turn if it likes. A turn without a call is
    the answer; without its thoughts it is what `answer` holds. Calls of all episodes run at the
    same time, so a function that keeps a state must allow for that.

    Args:
        tools: functions with types and Google-style docstrings, sync or async, each alone or with a
            time-out of its own: (function, seconds). What one returns is shown as it is if it is a
            text, else as JSON; what it raises is shown as an error.
        tasks: the tasks of each split: "train", "validation", "test".
        initial_instruction: what training starts from.
        prompt_format: how a prompt is laid out.
        seconds: after which a call counts as failed. A sync function cannot be stopped: it goes on
            in its thread, and its result is dropped.
        concurrency: calls that run at the same time, per process.

    Raises:
        ConfigError: a function without types or docstring, or two of the same name; names tool and
            parameter.
    """

    needs_rewards = True

    def __init__(
        self,
        tools: Sequence[ToolFunction | tuple[ToolFunction, float]],
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str = ToolsOptions.model_fields["initial_instruction"].default,
        prompt_format: PromptFormat | None = None,
        *,
        seconds: float = 30.0,
        concurrency: int = 32,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        if not tools:
            raise ConfigError("tools is empty; expected one function or more")
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; expected 1 or more")
        pairs = [
            cast("tuple[ToolFunction, float]", tool) if isinstance(tool, tuple) else (tool, seconds)
            for tool in tools
        ]
        self._tools = tuple(tool_of(function, own) for function, own in pairs)
        names = [tool.name for tool in self._tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"tools: two are called {twice[0]}; rename one of them")
        self._runner = ToolRunner(concurrency)

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool.schema for tool in self._tools)

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Makes the calls of all episodes side by side; answers in order."""
        return answered(actions, self._tools_of, self._runner)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """No reward; the answer is what the last turn says besides its thoughts."""
        return 0.0, answer_of(trajectory)

    def _tools_of(self, action: Action) -> Sequence[Tool]:
        return self._tools


def answer_of(trajectory: Trajectory) -> str | None:
    """The last turn without its thoughts; None if it calls a tool or says nothing."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.action != "answer":
        return None
    return spoken(last.text).strip() or None


def tool_environment(options: ToolsOptions, tasks: Mapping[str, Sequence[Task]]) -> ToolEnvironment:
    """The environment of a run file; ConfigError for functions that cannot be had or used."""
    environment = ToolEnvironment(
        [(_function(tool), tool.seconds or options.seconds) for tool in options.tools],
        tasks,
        options.initial_instruction,
        concurrency=options.concurrency,
    )
    environment.description = options.description
    return environment


def _function(config: ToolConfig) -> ToolFunction:
    return import_object(config.function, "environment.tools")
