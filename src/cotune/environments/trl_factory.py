"""Environments written for TRL's `environment_factory`: reset(), methods as tools, get_reward()."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.environment_options import TrlOptions
from cotune.environments.tool_runner import Job, Outcome, ToolRunner, Worker
from cotune.environments.tools import Tool, answer_of, answered, tool_of
from cotune.errors import ConfigError
from cotune.types import Action, Prompt, Response, StopReason, Task, Trajectory
from cotune.utils.importing import import_object

_OWN = ("reset", "get_reward")
_FIELD = "environment.factory"


@dataclass
class _Instance:
    """One of the user's environments, its thread, and whether it is broken."""

    made: Any
    worker: Worker
    broken: bool = False

    def job(self, function: Callable[..., Any], seconds: float, **kwargs: Any) -> Job:
        return Job(function, seconds, kwargs=kwargs, worker=self.worker)


class TrlEnvironment(TaskEnvironment):
    """See `from_trl`.

    Each episode has its own instance, which is reset for it and reused by later ones, as in TRL. All
    calls of an instance are made in one thread, one after the other; several instances run at the
    same time. A `reset` that fails or a call that takes too long breaks its instance: the episode
    ends with an environment error, and the instance is not used again.

    Attributes:
        needs_rewards: False if the environment has `get_reward`.
        own_reward: the name of `get_reward` among the reward functions; "" without it.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str,
        prompt_format: PromptFormat | None,
        seconds: float,
        concurrency: int,
    ) -> None:
        super().__init__(tasks, initial_instruction, prompt_format)
        if not callable(factory):
            several = "; train with one at a time" if isinstance(factory, Mapping) else ""
            raise ConfigError(
                f"{_FIELD} is {type(factory).__name__}; expected a class or function that makes one "
                f"environment{several}"
            )
        self._factory, self._seconds = factory, seconds
        self._runner = ToolRunner(concurrency)
        self._live: dict[int, _Instance] = {}
        self._scored: set[int] = set()
        self._texts: dict[str, str] = {}
        first = self._new()
        self._spare = [first]
        kind = cast("type[Any]", type(first.made))
        if not callable(getattr(kind, "reset", None)):
            raise ConfigError(
                f"{_FIELD}: {kind.__name__} has no reset(); TRL's environments define it: add one"
            )
        self.own_reward = kind.__name__ if callable(getattr(kind, "get_reward", None)) else ""
        self.needs_rewards = not self.own_reward
        # On the instance, this would evaluate properties.
        names = [name for name, _ in inspect.getmembers(kind, predicate=inspect.isfunction)]
        self._tools = {
            name: tool_of(getattr(first.made, name), seconds, owner=kind.__name__)
            for name in names
            if not name.startswith("_") and name not in _OWN
        }

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(tool.schema for tool in self._tools.values())

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """Return the chat messages of a task, with the text of `reset` after the user's message.

        Raises:
            ConfigError: `reset` raises, or returns something other than a text or None.
        """
        if task.id not in self._texts:
            self._texts[task.id] = self._first_text(task)
        *before, last = super().messages(task, prompt)
        return [*before, {**last, "content": last["content"] + self._texts[task.id]}]

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Make the calls of all episodes at the same time; reset instances for those that start.

        Raises:
            ConfigError: `reset` returns a text other than the one in the prompt.
        """
        failed = self._begin([action for action in actions if not action.turns])
        begun = [action for action in actions if action.row not in failed]
        responses = answered(begun, self._tools_of, self._runner, shown=_shown, stateful=True)
        found = dict(zip((action.row for action in begun), responses, strict=True)) | failed
        for row, response in found.items():
            self._live[row].broken |= response.failed
        return [found[action.row] for action in actions]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the value of `get_reward`; 0 without it or if the environment broke.

        Raises:
            ConfigError: `get_reward` raises, takes too long, or returns no finite number.
        """
        self._scored.add(trajectory.row)
        answer = answer_of(trajectory)
        if not self.own_reward or trajectory.stop is StopReason.ENVIRONMENT_ERROR:
            return 0.0, answer
        instance = self._live[trajectory.row]
        outcome = self._runner.call(instance.job(instance.made.get_reward, self._seconds))
        where = f"{_FIELD}: get_reward() of {self.own_reward}"
        if outcome.error is not None:
            raise ConfigError(f"{where} {_failed(outcome.error)}; fix it") from outcome.error
        value = outcome.value
        if isinstance(value, str) or value is None or not math.isfinite(value):
            raise ConfigError(
                f"{where} returned {value!r} for task {trajectory.task.id}; expected a finite number"
            )
        return float(value), answer

    def reward_arguments(self, trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
        """Return `environments` for reward functions, as in TRL: each rollout's own instance.

        Rollouts that were not made here (when reward functions are tried out) get an instance that
        is reset for their task.
        """
        instances: list[Any] = []
        for trajectory in trajectories:
            instance = self._live.get(trajectory.row)
            if instance is None:
                self._first_text(trajectory.task)
                instance = self._spare[-1]
            instances.append(instance.made)
        return {"environments": instances}

    def _begin(self, actions: Sequence[Action]) -> dict[int, Response]:
        """Reset an instance for each episode that starts; return the failures by row."""
        for row in self._scored:
            self._give_back(self._live.pop(row))
        self._scored.clear()
        for action in actions:
            if action.row in self._live:  # from a rollout that was interrupted
                self._give_back(self._live.pop(action.row))
            self._live[action.row] = self._taken()
        outcomes = self._reset([(self._live[a.row], a.task) for a in actions])
        failed: dict[int, Response] = {}
        for action, outcome in zip(actions, outcomes, strict=True):
            if outcome.error is not None:
                error = f"reset() {_failed(outcome.error)}"
                failed[action.row] = Response(failed=True, action="invalid", error=error)
                continue
            text = _reset_text(outcome.value)
            if text != self._texts.get(action.task.id, text):
                raise ConfigError(
                    f"{_FIELD}: reset() returned another text for task {action.task.id} than before; "
                    "expected the same for the same columns: seed it by one of them"
                )
        return failed

    def _reset(self, pairs: Sequence[tuple[_Instance, Task]]) -> list[Outcome]:
        """Call `reset` of each instance with the columns of a task."""
        jobs = [
            [instance.job(instance.made.reset, self._seconds, **task.columns)]
            for instance, task in pairs
        ]
        return [outcome for (outcome,) in self._runner.run(jobs)]

    def _first_text(self, task: Task) -> str:
        """Return the text of `reset` for a task; the instance becomes the last spare one."""
        instance = self._taken()
        (outcome,) = self._reset([(instance, task)])
        if outcome.error is not None:
            raise ConfigError(
                f"{_FIELD}: reset() of task {task.id} {_failed(outcome.error)}; it is called with the "
                f"columns {', '.join(task.columns) or '(none)'}: fix it"
            ) from outcome.error
        self._give_back(instance)
        return _reset_text(outcome.value)

    def _tools_of(self, action: Action) -> Sequence[Tool]:
        instance = self._live[action.row]
        return [
            replace(tool, function=getattr(instance.made, name), worker=instance.worker)
            for name, tool in self._tools.items()
        ]

    def _taken(self) -> _Instance:
        return self._spare.pop() if self._spare else self._new()

    def _give_back(self, instance: _Instance) -> None:
        if not instance.broken:
            self._spare.append(instance)

    def _new(self) -> _Instance:
        worker = Worker()
        outcome = self._runner.call(Job(self._factory, math.inf, worker=worker))
        if outcome.error is not None:
            raise ConfigError(
                f"{_FIELD} {_failed(outcome.error)}; fix it, or its arguments"
            ) from outcome.error
        return _Instance(outcome.value, worker)


def from_trl(
    factory: Callable[[], Any],
    tasks: Mapping[str, Sequence[Task]],
    initial_instruction: str = TrlOptions.model_fields["initial_instruction"].default,
    prompt_format: PromptFormat | None = None,
    *,
    seconds: float = 30.0,
    concurrency: int = 32,
) -> TrlEnvironment:
    """Use an environment written for `GRPOTrainer(environment_factory=…)` unchanged.

    `reset(**columns)` is called with the columns of the task's row; the text it returns is appended
    to the user's message. Public methods are tools, sync or async. `get_reward()` scores; reward
    functions may take `environments`, as in TRL, and are added to it.

    Args:
        factory: a class or function that makes one environment, without arguments.
        tasks: the tasks of each split: "train", "validation", "test".
        initial_instruction: the instruction that training starts from.
        prompt_format: the layout of a prompt.
        seconds: the timeout of a call.
        concurrency: calls that run at the same time, per process.

    Raises:
        ConfigError: no factory, no `reset`, or a method that cannot be a tool; gives the fix.
    """
    return TrlEnvironment(factory, tasks, initial_instruction, prompt_format, seconds, concurrency)


def trl_environment(options: TrlOptions, tasks: Mapping[str, Sequence[Task]]) -> TrlEnvironment:
    """Build the environment of a run file; ConfigError for a factory that cannot be used."""
    factory = import_object(options.factory, _FIELD)
    if options.args:
        if not callable(factory):
            raise ConfigError(
                f"{_FIELD}: {options.factory} takes no arguments; remove environment.args"
            )
        factory = functools.partial(factory, **options.args)
    environment = from_trl(
        factory,
        tasks,
        options.initial_instruction,
        seconds=options.seconds,
        concurrency=options.concurrency,
    )
    environment.description = options.description
    return environment


def _shown(result: Any) -> str:
    """Return a result as TRL shows it to the policy: str(), or the texts of content blocks."""
    text = _of_blocks(result)
    return str(result) if text is None else text


def _reset_text(value: Any) -> str:
    """Return the result of `reset` as text."""
    if value is None or isinstance(value, str):
        return value or ""
    text = _of_blocks(value)
    if text is None:
        raise ConfigError(
            f"{_FIELD}: reset() returned {type(value).__name__}; expected a text, or None"
        )
    return text


def _of_blocks(value: Any) -> str | None:
    """Return the texts of content blocks; None for other values, ConfigError for an image."""
    if not isinstance(value, list):
        return None
    blocks = cast("list[Any]", value)
    types = [cast(Any, b).get("type") if isinstance(b, dict) else None for b in blocks]
    if "image" in types:
        raise ConfigError(f"{_FIELD} returned an image; policies are trained only on text")
    if not blocks or set(types) != {"text"}:
        return None
    return "".join(str(block["text"]) for block in blocks)


def _failed(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and str(error).startswith("took longer"):
        return str(error)
    return " ".join(f"raised {type(error).__name__}: {error}".split())[:200]
