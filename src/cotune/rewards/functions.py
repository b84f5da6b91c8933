"""Reward functions as TRL takes them, given what they should read: real prompts, own tokens."""

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards import REWARDS, Reward
from cotune.rewards.batch import Batch
from cotune.rewards.boxed import BoxedReward, last_boxed
from cotune.rewards.calls import (
    Loaded,
    RewardFunction,
    call,
    check_columns,
    checked,
    is_async,
    name_of,
    raised,
)
from cotune.types import Task, Trajectory
from cotune.utils.background import BackgroundLoop
from cotune.utils.importing import import_object

_LOOP = BackgroundLoop()


class AnswerReward:
    """One of our rewards: a rollout's answer against the accepted answers of its task.

    Args:
        name: what a run file calls it.
        reward: of an answer, or None, and the accepted ones.
        answer: how it is read off a rollout.
        exact: whether it is 1 or 0.
    """

    def __init__(
        self,
        name: str,
        reward: Reward,
        answer: Callable[[Trajectory], str | None],
        *,
        exact: bool,
    ) -> None:
        self.__name__, self.exact = name, exact
        self._reward, self._answer = reward, answer

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return [self._reward(self._answer(t), t.task.answers) for t in trajectories]


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """A reward function as `RewardFunctions` takes it.

    Attributes:
        function: the function, or a reference as in a run file.
        weight: of its values in the sum.
        messages: whether it is given chat messages (True) or texts (False); None is as the data has
            its questions, and messages where there are tools.
    """

    function: RewardFunction | str
    weight: float = 1.0
    messages: bool | None = None


AnyReward = RewardFunction | str | tuple[RewardFunction | str, float] | WeightedReward
"""What `RewardFunctions` takes."""


class RewardFunctions:
    """Scores a batch of rollouts by the weighted sum of reward functions.

    Each is called as TRL calls it: `prompts`, `completions`, `completion_ids` and every column of
    the data by keyword, lists of one entry a rollout, and `trainer_state`, `log_metric` and
    `log_extra` (which is taken and dropped). A function without `**kwargs` gets those it names.
    `ground_truths` are the tasks' accepted answers, where no column has that name. Async functions
    run at the same time, on one event loop. An environment of TRL's gives `environments`, too, and
    its own reward is added to the sum.

    Where TRL shows what it was trained on, they receive the prompt that is trained on (instruction
    and question, no hint), and as completion the policy's own turns, as assistant messages without
    observations. Data whose questions are plain texts gives texts in place of messages.

    A batch is what one process rolls out together: a part of a step's, or of a verification.

    Args:
        functions: each alone, with its weight, as a `WeightedReward`, or by reference.

    Attributes:
        trainer_state: what functions get under that name: the trainer's, where there is one.

    Raises:
        ConfigError: no function, one that is none, a weight that is not finite, a reference that
            leads nowhere.
    """

    def __init__(
        self,
        functions: Sequence[AnyReward],
    ) -> None:
        if not functions:
            raise ConfigError("rewards: there are none; expected at least one function")
        self._functions: dict[str, Loaded] = {}
        for given in functions:
            reward = _loaded(given)
            self._functions[self._free_name(name_of(reward.function))] = reward
        self.trainer_state: Any = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)

    @property
    def measure(self) -> str:
        """What the mean of the rewards is called: "exact match" where it is that alone."""
        reward, *others = self._functions.values()
        function = reward.function
        exact = isinstance(function, AnswerReward) and function.exact and reward.weight == 1
        return "exact match" if exact and not others else "mean reward"

    @property
    def names(self) -> tuple[str, ...]:
        """Of the functions, in order; a second one of the same name has "_2" after it."""
        return tuple(self._functions)

    def __call__(
        self, trajectories: Sequence[Trajectory], environment: Environment
    ) -> list[Trajectory]:
        """See `contracts.Rewards`.

        Raises:
            ConfigError: a function asks for a column that the data lacks, raises, or gives no
                finite number for each rollout.
        """
        if not trajectories:
            return []
        batch = Batch(trajectories, environment, self.trainer_state)
        found = self._called(batch)
        logged = {name: sum(v) / len(v) for name, v in batch.logged.items()}
        # An environment of TRL's own kind scores beside the functions, with the weight 1.
        own = getattr(environment, "own_reward", "")
        own = own and self._free_name(own)
        scored: list[Trajectory] = []
        for i, trajectory in enumerate(trajectories):
            parts = {name: found[name][i] for name in self._functions}
            total = sum(parts[name] * r.weight for name, r in self._functions.items())
            if own:
                parts[own] = trajectory.reward
                total += trajectory.reward
            scored.append(replace(trajectory, reward=total, parts=parts, logged=logged))
        return scored

    def describe(self) -> list[dict[str, object]]:
        """Plain data that tells these functions from others."""
        return [
            {"function": name, "weight": reward.weight, "messages": reward.messages}
            for name, reward in self._functions.items()
        ]

    def check_tasks(self, tasks: Sequence[Task], split: str, also: Sequence[str] = ()) -> None:
        """Raises ConfigError for what the functions need and the tasks of a split do not have.

        Args:
            also: what the environment gives them besides.
        """
        columns = dict.fromkeys([name for task in tasks for name in task.columns] + list(also))
        for name, reward in self._functions.items():
            if not isinstance(reward.function, AnswerReward):
                check_columns(name, reward.function, list(columns))
                continue
            without = next((task.id for task in tasks if not task.answers), None)
            if without is not None:
                raise ConfigError(
                    f"rewards: {name} compares with answers, but task {without} of the {split} split "
                    "has none; name their column by dataset.columns: {answers: …}, or drop the row"
                )

    def _called(self, batch: Batch) -> dict[str, list[float]]:
        """The values of every function: async ones together, after the others."""
        found: dict[str, list[float]] = {}
        waiting: dict[str, Loaded] = {}
        for name, reward in self._functions.items():
            function = reward.function
            if isinstance(function, AnswerReward):
                found[name] = function(batch.trajectories)
                continue
            check_columns(name, function, batch.columns)
            if is_async(function):
                waiting[name] = reward
            else:
                found[name] = _values(name, reward, batch)
        if waiting:
            results = _LOOP.run(_together([_awaited(r, batch) for r in waiting.values()]))
            for (name, reward), result in zip(waiting.items(), results, strict=True):
                if isinstance(result, Exception):
                    raise raised(name, reward, result, batch) from result
                if isinstance(result, BaseException):
                    raise result
                found[name] = checked(name, result, batch.ids)
        return found

    def _free_name(self, name: str) -> str:
        count = 1
        while (free := name if count == 1 else f"{name}_{count}") in self._functions:
            count += 1
        return free


def load_reward(reference: str) -> RewardFunction | AnswerReward:
    """A reward function by reference, or one of ours by name; ConfigError if it is neither."""
    if reference in REWARDS:
        exact = reference == "exact_match"
        return AnswerReward(reference, REWARDS[reference], lambda t: t.answer, exact=exact)
    if reference == "boxed":
        return AnswerReward(reference, _boxed(), lambda t: last_boxed(t.own_text), exact=True)
    if ":" not in reference:
        known = ", ".join([*REWARDS, "boxed"])
        raise ConfigError(
            f"rewards: {reference!r} is none of {known}; expected one of them, package.module:name "
            "or file.py:name"
        )
    return cast(RewardFunction, import_object(reference, "rewards"))


def _boxed() -> Reward:
    """`BoxedReward` on ground truths that may be whole solutions with a box."""
    reward = BoxedReward()

    def boxed(answer: str | None, truths: Sequence[str]) -> float:
        return reward(answer, [last_boxed(truth) or truth for truth in truths])

    return boxed


def _loaded(given: AnyReward) -> Loaded:
    """A function with its weight, checked."""
    if isinstance(given, tuple):
        alone, weight = cast("tuple[RewardFunction | str, float]", given)
        given = WeightedReward(function=alone, weight=weight)
    elif not isinstance(given, WeightedReward):
        given = WeightedReward(function=given)
    function, weight = given.function, given.weight
    if isinstance(function, str):
        function = load_reward(function)
    named = given.function if isinstance(given.function, str) else name_of(function)
    if not callable(function):
        raise ConfigError(
            f"rewards: {named} is {type(function).__name__}; expected a function that takes "
            "completions and gives a number for each"
        )
    if hasattr(function, "named_parameters") or isinstance(function, type):
        kind = "a class" if isinstance(function, type) else "a torch module"
        raise ConfigError(
            f"rewards: {named} is {kind}; expected a function or an object that is called: write a "
            "function around it that takes completions and gives a number for each"
        )
    if isinstance(weight, bool) or not isinstance(cast(Any, weight), int | float):
        raise ConfigError(f"rewards: the weight of {named} is {weight!r}; expected a number")
    if not math.isfinite(weight):
        raise ConfigError(f"rewards: the weight of {named} is {weight}; expected a finite number")
    return Loaded(function=function, weight=float(weight), messages=given.messages)


def _values(name: str, reward: Loaded, batch: Batch) -> list[float]:
    """The values of a function that is not async."""
    try:
        values = call(reward, batch)
        if inspect.isawaitable(values):  # of a lambda around an async function, say
            values = _LOOP.run(_result(values))
    except ConfigError:
        raise
    # The user's code: whatever it raises is said with its name.
    except Exception as error:
        raise raised(name, reward, error, batch) from error
    return checked(name, values, batch.ids)


async def _awaited(reward: Loaded, batch: Batch) -> Any:
    return await call(reward, batch)


async def _result(value: Any) -> Any:
    return await value


async def _together(calls: Sequence[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)
