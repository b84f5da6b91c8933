"""Environments written for TRL's `environment_factory`: reset(), methods as tools, get_reward().

`reset` may draw the task of an episode at random. Its text is then part of that episode's question.
Before each `reset`, the generators of `random`, numpy and torch are seeded for the episode: in training
by the rollout call and the task, so that a group starts from one state; in evaluations, where nothing is
drawn, only by the task. Resets are made one after another, as in TRL, so that they draw the same on every
rank and after a resume. Tools that draw need a generator of their own, made in `reset`.
"""

import functools
import inspect
import math
import random
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field

from cotune.data.splits import SPLITS
from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.registry import EnvironmentKind, Tasks
from cotune.environments.tools import CONCURRENCY, Job, ToolRunner, answer_of, call_tools, schema_of
from cotune.errors import ConfigError
from cotune.rollout.coordinator import stable_seed
from cotune.types import Action, Prompt, Response, StopReason, Task, ToolCall, Trajectory
from cotune.utils.background import Worker
from cotune.utils.importing import import_object
from cotune.utils.text import named
from cotune.utils.validation import Model

INITIAL_INSTRUCTION = "Complete the task. Call the tools where they help."
_FIELD = "environment.factory"
_RESETS = 10  # tasks of a split whose text of reset() decides how a prompt is laid out
_EPISODES = 1000  # tasks to train on without a data set; each is another one in every step


class TrlOptions(Model):
    """An environment written for TRL's `environment_factory`, with a `dataset` or without one."""

    kind: Literal["trl"] = "trl"
    factory: str
    """`package.module:name` or `file.py:name` of a class or function that makes one environment."""
    args: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Keyword arguments of the factory."""
    validation: int = Field(default=100, ge=1)
    """Number of episodes for choosing the best policy, without a `dataset`."""
    test: int = Field(default=200, ge=1)
    """Number of episodes for the final evaluation, without a `dataset`."""
    seconds: float = Field(default=30.0, gt=0)
    """Timeout of a call, in seconds."""


@dataclass(eq=False)
class _Instance:
    """One of the user's environments and its thread, and what became of its last `reset`."""

    environment: Any
    worker: Worker
    text: str = ""
    failure: str = ""
    broken: bool = False  # not used again


class TrlEnvironment(TaskEnvironment):
    """An environment written for `GRPOTrainer(environment_factory=…)`, used unchanged.

    `reset(**columns)` is called with the columns of the task's row; the text it returns is appended
    to the question. Public methods are tools, sync or async. `get_reward()` scores; reward
    functions may take `environments`, as in TRL, and are added to it. For the instruction and the
    prompt's format see `TaskEnvironment`.

    Each episode has its own instance, which is reset for it and reused by later ones, as in TRL. All
    calls of an instance are made in one thread, one after the other; tools of several instances run at
    the same time. A `reset` that fails ends its episode with an environment error; so does a call that takes
    too long, whose instance is not used again.

    Args:
        factory: a class or function that makes one environment, without arguments.
        tasks: None if `reset` makes the tasks: 100 episodes are then for validation, 200 for the test.
        seconds: the timeout of a call.

    Attributes:
        own_reward: the name of `get_reward` among the reward functions; "" without it.

    Raises:
        ConfigError: no factory, no `reset`, or a method that cannot be a tool; gives the fix.
    """

    parallel_responses = CONCURRENCY

    def __init__(
        self,
        factory: Callable[[], Any],
        tasks: Mapping[str, Sequence[Task]] | None = None,
        initial_instruction: str = INITIAL_INSTRUCTION,
        prompt_format: PromptFormat | None = None,
        *,
        seconds: float = 30.0,
    ) -> None:
        super().__init__(
            _episodes() if tasks is None else tasks, initial_instruction, prompt_format
        )
        if not callable(factory):
            raise ConfigError(
                f"{_FIELD} is {type(factory).__name__}; expected one class or function that makes an environment"
            )
        self._factory = factory
        self._seconds = seconds
        self._runner = ToolRunner(CONCURRENCY)
        self._in_order = ToolRunner(1)
        self._live: dict[int, _Instance] = {}
        self._scored: set[int] = set()
        self._by_id: tuple[dict[str, Task], object] = {}, None
        self._texts: dict[str, str] = {}  # of the last reset for each task
        self._spare: list[_Instance] = []
        first = self._take()
        self._spare.append(first)
        kind = cast("type[Any]", type(first.environment))
        # They may be wrapped, or class methods.
        if not callable(getattr(kind, "reset", None)):
            raise ConfigError(
                f"{_FIELD}: {kind.__name__} has no reset(); TRL's environments define it: add one"
            )
        self.own_reward = kind.__name__ if callable(getattr(kind, "get_reward", None)) else ""
        self.needs_rewards = not self.own_reward
        # On the instance, this would evaluate properties.
        methods = dict(inspect.getmembers(kind, predicate=inspect.isfunction))
        self._schemas = {
            name: schema_of(getattr(first.environment, name), f"{kind.__name__}.")
            for name in methods
            if not name.startswith("_") and name not in ("reset", "get_reward")
        }
        self.tools = tuple(self._schemas.values())

    def begin(self, tasks: Sequence[Task], rows: Sequence[int], seeds: Sequence[int]) -> list[Task]:
        """Reset an instance for each episode, with a seed; return its task with the text of `reset`."""
        # A rollout that was interrupted left instances at these rows.
        for row in self._live.keys() & (self._scored | set(rows)):
            self._give_back(self._live.pop(row))
        self._scored.clear()
        plain = [self._plain(task) for task in tasks]
        instances = [self._take() for _ in rows]
        self._live |= zip(rows, instances, strict=True)
        self._reset(instances, plain, seeds)
        self._texts |= {
            task.id: instance.text
            for task, instance in zip(plain, instances, strict=True)
            if not instance.failure
        }
        return [
            replace(task, question=task.question + instance.text)
            for task, instance in zip(plain, instances, strict=True)
        ]

    def messages(self, task: Task, prompt: Prompt) -> list[dict[str, str]]:
        """Return the chat messages of a task; one that was not begun gets the text of a reset."""
        return super().messages(self._with_text(task), prompt)

    def question_messages(self, task: Task) -> list[dict[str, Any]]:
        return super().question_messages(self._with_text(task))

    def served_format(self, instruction: str) -> PromptFormat | None:
        # To reset for every task may take long.
        tasks = [self._with_text(task) for split in SPLITS for task in self.tasks(split)[:_RESETS]]
        return self.prompt_format.served(tasks, instruction)

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        """Make the calls of all episodes at the same time; episodes that were not begun are begun."""
        if new := [action for action in actions if action.row not in self._live]:
            self.begin([a.task for a in new], [a.row for a in new], [0] * len(new))
        playing = [action for action in actions if not self._live[action.row].failure]
        answers = iter(call_tools(playing, self._job_of, self._runner, stateful=True))
        responses: list[Response] = []
        for action in actions:
            instance = self._live[action.row]
            if instance.failure:
                response = Response(failed=True, action="invalid", error=instance.failure)
            else:
                response = next(answers)
                instance.broken |= response.failed
            responses.append(response)
        return responses

    def score(self, trajectory: Trajectory) -> tuple[Any, str | None]:
        """Return the value of `get_reward`, which may be None; 0 without it or if the environment broke.

        Raises:
            ConfigError: `get_reward` raises or takes too long.
        """
        self._scored.add(trajectory.row)
        answer = answer_of(trajectory)
        if not self.own_reward or trajectory.stop is StopReason.ENVIRONMENT_ERROR:
            return 0.0, answer
        instance = self._live[trajectory.row]
        job = Job(instance.environment.get_reward, self._seconds, worker=instance.worker)
        with keep_generators():
            self._runner.run([[job]])
        if job.error is not None:
            raise ConfigError(
                f"{_FIELD}: get_reward() of {self.own_reward} {_describe(job)}; fix it"
            ) from job.error
        return job.value, answer

    def reward_parts(self, trajectory: Trajectory) -> dict[str, float]:
        """Return the value of `get_reward` under the environment's name; {} without one."""
        return {self.own_reward: trajectory.reward} if self.own_reward and trajectory.scored else {}

    def reward_arguments(self, trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
        """Return `environments` for reward functions, as in TRL: each rollout's own instance."""
        return {"environments": [self._live[t.row].environment for t in trajectories]}

    def _plain(self, task: Task) -> Task:
        """Return a task as the data has it, without the text of `reset`."""
        by_id, tasks = self._by_id
        if tasks is not self._tasks:  # `with_tasks` made a copy with others
            by_id = {task.id: task for split in self._tasks.values() for task in split}
            self._by_id = by_id, self._tasks
        return by_id.get(task.id, task)

    def _with_text(self, task: Task) -> Task:
        """Return a task with the text of `reset`: its episode's, else that of a reset of its own."""
        if task.question != self._plain(task).question:
            return task
        if task.id not in self._texts:
            self._texts[task.id] = self._first_text(task)
        return replace(task, question=task.question + self._texts[task.id])

    def _reset(
        self, instances: Sequence[_Instance], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> None:
        """Call `reset` of each instance with the columns of its task, seeded for its episode."""
        jobs = [
            Job(
                with_seed(instance.environment.reset, stable_seed(seed, task.id)),
                self._seconds,
                task.own_columns(),
                instance.worker,
            )
            for instance, task, seed in zip(instances, tasks, seeds, strict=True)
        ]
        with keep_generators():
            self._in_order.run([[job] for job in jobs])
        for instance, job in zip(instances, jobs, strict=True):
            instance.failure = f"reset() {_describe(job)}" if job.error else ""
            instance.broken |= job.timed_out  # the call may still change it
            value = "" if job.error or job.value is None else job.value
            if not isinstance(value, str):
                kind = type(value).__name__
                raise ConfigError(
                    f"{_FIELD}: reset() returned {kind}; expected a text, as policies read no images, or None"
                )
            instance.text = value

    def _first_text(self, task: Task) -> str:
        """Return the text of `reset` for a task that no episode asks."""
        instance = self._take()
        self._reset([instance], [task], [0])
        if instance.failure:
            raise ConfigError(f"{_FIELD}: {instance.failure} for task {task.id}; fix it")
        self._give_back(instance)
        return instance.text

    def _job_of(self, action: Action, call: ToolCall) -> Job | None:
        if call.name not in self._schemas:
            return None
        instance = self._live[action.row]
        function = getattr(instance.environment, call.name)
        return Job(function, self._seconds, call.arguments, instance.worker)

    def _give_back(self, instance: _Instance) -> None:
        if not instance.broken:
            self._spare.append(instance)

    def _take(self) -> _Instance:
        """Return an instance that is free, or a new one."""
        if self._spare:
            return self._spare.pop()
        job = Job(self._factory, math.inf, worker=Worker())
        self._runner.run([[job]])
        if job.error is not None:
            raise ConfigError(f"{_FIELD} {_describe(job)}; fix it, or its arguments") from job.error
        return _Instance(job.value, cast(Worker, job.worker))


from_trl = TrlEnvironment
"""The public name, beside `from_verifiers`."""


def trl_environment(options: TrlOptions, tasks: Tasks | None) -> TrlEnvironment:
    """Build the environment of a run file."""
    factory = import_object(options.factory, _FIELD)
    if options.args and callable(factory):
        factory = functools.partial(factory, **options.args)
    return TrlEnvironment(
        factory,
        _episodes(options.validation, options.test) if tasks is None else tasks,
        seconds=options.seconds,
    )


def _episodes(validation: int = 100, test: int = 200) -> dict[str, list[Task]]:
    """Return tasks without a question for environments that make their own, as TRL does."""
    counts = {"train": _EPISODES, "validation": validation, "test": test}
    prompt = {"prompt": [{"role": "user", "content": ""}]}
    return {
        split: [Task(f"{split}-{i}", "", (), chat=True, columns=prompt) for i in range(count)]
        for split, count in counts.items()
    }


def _describe(job: Job) -> str:
    """Return how a call failed."""
    return str(job.error) if job.timed_out else f"raised {named(cast(BaseException, job.error))}"


@contextmanager
def keep_generators() -> Generator[None]:
    """Restore the states of `random`, numpy and torch, whose draws are the training's."""
    torch = sys.modules.get("torch")  # not imported for this alone
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


def with_seed(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """Return a function that sets the seeds of all generators before each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        if (torch := sys.modules.get("torch")) is not None:
            torch.random.default_generator.manual_seed(seed)
        return function(*args, **kwargs)

    return call


KIND = EnvironmentKind(
    options=TrlOptions, build=trl_environment, dataset="optional", runs_user_code=True
)
