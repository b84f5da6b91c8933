"""Reward functions with TRL's signature, called with real prompts and the policy's own tokens."""

import functools
import inspect
import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards.boxed import BoxedReward, last_boxed
from cotune.rewards.qa import REWARDS
from cotune.types import Prompt, Task, Trajectory, Turn
from cotune.utils.background import BackgroundLoop
from cotune.utils.importing import import_object, reference_to
from cotune.utils.text import line_of, named, shorten, shorten_middle, without_thoughts
from cotune.utils.values import finite

_log = logging.getLogger("cotune")

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, **columns)`, sync or async. It returns a number for each completion, None where
it does not apply, or a pair of one and a text that explains it."""

FEEDBACK_CHARS = 2000
"""Characters that are kept of a function's text; the middle of a longer one is left out."""

ARGUMENTS = (
    "prompts", "completions", "completion_ids", "ground_truths", "trainer_state", "log_extra",
    "log_metric",
)  # fmt: skip
"""Keyword arguments of a function other than the columns of the data."""

BUILT_IN = (*REWARDS, "boxed")
"""Names of the rewards that compare a rollout's answer with its task's."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LOOP = BackgroundLoop()


@dataclass(frozen=True, kw_only=True)
class WeightedReward:
    """A reward function with its weight.

    Attributes:
        function: the function, or a reference as in a run file.
        weight: the weight of its values in the sum.
        messages: whether it gets chat messages (True) or texts (False); None follows the form of
            the data's questions, and gives messages if there are tools.
    """

    function: RewardFunction | str
    weight: float = 1.0
    messages: bool | None = None


Scored = tuple[float | None, str]
"""A function's value for one rollout, None if it does not apply, and its feedback; "" if it gives none."""


class AnswerReward:
    """A built-in reward, of `BUILT_IN`, which compares a rollout's answer with its task's."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self._boxed = BoxedReward() if name == "boxed" else None

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[float]:
        if self._boxed is None:
            reward = REWARDS[self.__name__]
            return [reward(t.answer, t.task.answers) for t in trajectories]
        # Ground truths may be whole solutions with a box.
        truths = [[last_boxed(truth) or truth for truth in t.task.answers] for t in trajectories]
        answers = [last_boxed(without_thoughts(t.own_text)) for t in trajectories]
        return self._boxed.score(list(zip(answers, truths, strict=True)))


@dataclass(frozen=True)
class _Loaded:
    """A reward function that was loaded, under the name of its values."""

    name: str
    function: RewardFunction
    weight: float
    messages: bool | None

    @functools.cached_property
    def parameters(self) -> list[inspect.Parameter]:
        return list(inspect.signature(self.function).parameters.values())

    def select(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the function accepts: all, if it has **kwargs."""
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters):
            return dict(arguments)
        names = {p.name for p in self.parameters if p.kind in _NAMED}
        return {name: value for name, value in arguments.items() if name in names}

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise ConfigError for a required parameter that nothing provides."""
        for parameter in self.parameters:
            required = parameter.kind in _NAMED and parameter.default is inspect.Parameter.empty
            if required and parameter.name not in (*columns, *ARGUMENTS):
                raise ConfigError(
                    f"rewards: {self.name} needs the column {parameter.name!r}, but the data has "
                    f"{', '.join(columns) or 'no columns'}; rename the parameter or the column"
                )

    @contextmanager
    def name_faults(self, completions: Sequence[Any]) -> Generator[None]:
        """Turn what the function raises into a ConfigError, with its line and the form of `completions`."""
        try:
            yield
        except (ConfigError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's code may raise anything, SystemExit too
            is_text = isinstance(completions[0], str)
            form, other = ("texts", "chat messages") if is_text else ("chat messages", "texts")
            raise ConfigError(
                f"rewards: {self.name} raised {named(error)}{line_of(error)}; fix the function: it gets {form} "
                f"(messages: {str(is_text).lower()} for it in rewards gives {other})"
            ) from error


class RewardFunctions:
    """Scores a batch, the rollouts that one process makes together, by the weighted sum of reward functions.

    Functions are called as TRL calls them, with `prompts`, `completions`, `completion_ids` and every column of the data
    as lists with one entry for each rollout, and with `trainer_state`, `log_metric` and `log_extra`. A function without
    `**kwargs` gets the arguments that it names. `ground_truths` are the tasks' accepted answers, unless a column has
    that name. Async functions run at the same time, on one event loop. A TRL environment also gives `environments`, and
    its own reward is added to the sum. A function that returns None for a rollout is left out of its sum; a rollout for
    which all do has no reward (`Trajectory.scored`).

    The prompt is the one that is trained on (instruction and question, no hint). The completion is the
    conversation after it: the policy's messages with their `tool_calls`, and the tools'. If the data's
    questions are plain texts and there are no tools, both are texts.

    Args:
        functions: functions, references as in a run file, or `WeightedReward`s of them.

    Attributes:
        trainer_state: passed to functions; the trainer's own state if there is a trainer.

    Raises:
        ConfigError: no function, something that is not a function, or a reference that cannot be imported.
    """

    def __init__(self, functions: Sequence[RewardFunction | str | WeightedReward]) -> None:
        if not functions:
            raise ConfigError("rewards: there are none; expected at least one function")
        self._functions: list[_Loaded] = []
        for function in functions:
            is_weighted = isinstance(function, WeightedReward)
            loaded = _load(function if is_weighted else WeightedReward(function=function))
            self._functions.append(replace(loaded, name=self._free_name(loaded.name)))
        self.trainer_state: Any = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)
        self._warned = False

    @property
    def measure(self) -> str:
        """Return the name of the mean reward: "exact match" if that is the only reward."""
        reward, *others = self._functions
        is_built_in = isinstance(reward.function, AnswerReward)
        is_exact = is_built_in and reward.name in ("exact_match", "boxed")
        return "exact match" if is_exact and reward.weight == 1 and not others else "mean reward"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the functions' names, in order; a second one of the same name ends in "_2"."""
        return tuple(reward.name for reward in self._functions)

    def __call__(
        self, trajectories: Sequence[Trajectory], environment: Environment
    ) -> list[Trajectory]:
        """Return the rollouts with their rewards; see `protocols.Rewards`.

        Raises:
            ConfigError: a function raises, or does not return a finite number for each rollout.
        """
        if not trajectories:
            return []
        logged: dict[str, list[float]] = {}
        extra: dict[str, Sequence[Any]] = {}
        scores = self._call_functions(trajectories, environment, logged, extra)
        means = {name: sum(values) / len(values) for name, values in logged.items()}
        weights = self.weights(environment)
        own_name = next(iter(weights.keys() - scores.keys()), "")
        results: list[Trajectory] = []
        for i, trajectory in enumerate(trajectories):
            values = {name: scored[i][0] for name, scored in scores.items()}
            if own_name and trajectory.scored:
                values[own_name] = trajectory.reward
            parts = {name: value for name, value in values.items() if value is not None}
            results.append(
                replace(
                    trajectory,
                    reward=sum(value * weights[name] for name, value in parts.items()),
                    parts=parts,
                    feedback=_join({name: scored[i][1] for name, scored in scores.items()}),
                    logged=means,
                    extra={column: values[i] for column, values in extra.items()},
                    scored=bool(parts),
                )
            )
        unscored = next((t.task.id for t in results if not t.scored), None)
        if unscored is not None and not self._warned:
            self._warned = True
            _log.warning(
                "rewards: every function returned None for a rollout of task %s, which is not trained on; "
                "return a number from at least one of them",
                unscored,
            )
        return results

    def weights(self, environment: Environment) -> dict[str, float]:
        """Return the weight of each value in a rollout's `parts` by name; a TRL environment's own reward comes last."""
        weights = {reward.name: reward.weight for reward in self._functions}
        if own_name := getattr(environment, "own_reward", ""):
            weights[self._free_name(own_name)] = 1.0
        return weights

    def record(self) -> list[dict[str, object]]:
        """Return the `rewards` of a run file with these functions."""
        return [
            {
                "function": reward.function.__name__
                if isinstance(reward.function, AnswerReward)
                else reference_to(reward.function),
                "weight": reward.weight,
                "messages": reward.messages,
            }
            for reward in self._functions
        ]

    def check_tasks(self, tasks: Sequence[Task], split: str, also: Sequence[str] = ()) -> None:
        """Raise ConfigError if a function needs what neither a split's tasks nor the environment, `also`, provide."""
        columns = list(dict.fromkeys([name for task in tasks for name in task.columns] + [*also]))
        without = next((task.id for task in tasks if not task.answers), None)
        for reward in self._functions:
            if not isinstance(reward.function, AnswerReward):
                reward.check_columns(columns)
            elif without is not None:
                raise ConfigError(
                    f"rewards: {reward.name} compares with answers, but task {without} of the {split} split "
                    "has none; name their column in dataset.columns: {answers: …}, or drop the row"
                )

    def _call_functions(
        self,
        trajectories: Sequence[Trajectory],
        environment: Environment,
        logged: dict[str, list[float]],
        extra: dict[str, Sequence[Any]],
    ) -> dict[str, list[Scored]]:
        """Return the results of the functions, by name; async ones run together, beside the others."""

        def log_extra(column: str, values: Sequence[Any]) -> None:
            if len(values) != len(trajectories):
                raise ValueError(
                    f"log_extra({column!r}, …) has {len(values)} values; expected {len(trajectories)}"
                )
            extra[column] = values

        def log_metric(name: str, value: float) -> None:
            if math.isfinite(number := float(value)):
                logged.setdefault(name, []).append(number)

        @functools.cache
        def arguments_for(messages: bool | None) -> dict[str, Any]:
            return _list_arguments(trajectories, environment, messages) | {
                "trainer_state": self.trainer_state,
                "log_extra": log_extra,
                "log_metric": log_metric,
            }

        returned: dict[str, Any] = {}
        scores: dict[str, list[Scored]] = {}
        try:
            for reward in self._functions:
                arguments = arguments_for(reward.messages)
                if isinstance(reward.function, AnswerReward):
                    returned[reward.name] = reward.function(trajectories)
                    continue
                with reward.name_faults(arguments["completions"]):
                    value = reward.function(**reward.select(arguments))
                    returned[reward.name] = (
                        _LOOP.submit(value) if inspect.iscoroutine(value) else value
                    )
            for reward in self._functions:
                with reward.name_faults(arguments_for(reward.messages)["completions"]):
                    value = returned[reward.name]
                    if isinstance(value, Future):
                        value = cast("Future[Any]", value).result()
                    # A generator runs only now.
                    scores[reward.name] = _check_values(reward.name, value, trajectories)
        finally:
            for value in returned.values():
                if isinstance(value, Future):
                    value.cancel()
        return scores

    def _free_name(self, name: str) -> str:
        count = 1
        while (free := name if count == 1 else f"{name}_{count}") in self.names:
            count += 1
        return free


def load_reward(reference: str) -> RewardFunction | AnswerReward:
    """Load a reward function by reference, or a built-in one by name; ConfigError for neither."""
    if reference in BUILT_IN:
        return AnswerReward(reference)
    if ":" not in reference:
        raise ConfigError(
            f"rewards: {reference!r} is unknown; expected one of {', '.join(BUILT_IN)}, "
            "package.module:name or file.py:name"
        )
    return cast(RewardFunction, import_object(reference, "rewards"))


def _load(reward: WeightedReward) -> _Loaded:
    """Load and check a function with its weight."""
    function = reward.function
    label = function if isinstance(function, str) else _name_of(function)
    if isinstance(function, str):
        function = load_reward(function)
    if not callable(function):
        raise ConfigError(
            f"rewards: {label} is no function; expected a function or a callable object"
        )
    return _Loaded(_name_of(function), function, reward.weight, reward.messages)


def _list_arguments(
    trajectories: Sequence[Trajectory], environment: Environment, messages: bool | None
) -> dict[str, list[Any]]:
    """Return the keyword arguments of reward functions; `messages` as in `WeightedReward`."""
    rows = [t.task.own_columns() for t in trajectories]
    columns = dict.fromkeys(key for row in rows for key in row)
    arguments: dict[str, list[Any]] = {
        "ground_truths": [list(t.task.answers) for t in trajectories]
    }
    arguments |= {name: [row.get(name) for row in rows] for name in columns}
    chats = [
        bool(environment.tools) or t.task.chat if messages is None else messages
        for t in trajectories
    ]
    # The prompt that is trained on, which has no hint.
    prompts = [
        environment.messages(t.task, Prompt(t.assignment.trained.instruction)) for t in trajectories
    ]
    arguments["prompts"] = [
        p if chat else "\n\n".join(m["content"] for m in p)
        for p, chat in zip(prompts, chats, strict=True)
    ]
    arguments["completions"] = [
        _list_messages(t) if chat else "".join(map(_read_turn, t.turns))
        for t, chat in zip(trajectories, chats, strict=True)
    ]
    # An EOS that the policy did not write itself only closes the episode.
    arguments["completion_ids"] = [
        list(t.completion_ids if t.mask[-1] else t.completion_ids[:-1]) for t in trajectories
    ]
    return arguments | of_environment(environment, trajectories)


def _list_messages(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the messages after the prompt: the policy's, and what it was answered."""
    return [
        dict(message)
        for turn in trajectory.turns
        for message in turn.messages or ({"role": "assistant", "content": turn.text},)
    ]


def _read_turn(turn: Turn) -> str:
    """Return the text of a turn; without control tokens, unless it has more parts than the text."""
    message: Mapping[str, Any] = turn.messages[0] if turn.messages else {}
    return str(message["content"]) if message.keys() == {"role", "content"} else turn.text


def of_environment(
    environment: Environment, trajectories: Sequence[Trajectory]
) -> dict[str, list[Any]]:
    """Return the arguments that an environment adds: `environments`, as in TRL."""
    give = getattr(environment, "reward_arguments", None)
    return {} if give is None else give(trajectories)


def _name_of(function: RewardFunction) -> str:
    """Return a function's name as in TRL: of a partial the wrapped one's, of an object its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def _check_values(name: str, values: Any, trajectories: Sequence[Trajectory]) -> list[Scored]:
    """Return a function's results; ConfigError if it is not one finite number for each rollout."""
    values = values.tolist() if hasattr(values, "tolist") else values
    is_list = hasattr(values, "__iter__") and not isinstance(values, str | Mapping)
    rewards: list[Any] = list(cast(Any, values)) if is_list else []
    if len(rewards) != len(trajectories):
        raise ConfigError(
            f"rewards: {name} returned {shorten(values)}; expected a list of {len(trajectories)} numbers, one for "
            "each completion"
        )
    return [
        _read_score(name, value, t.task.id) for value, t in zip(rewards, trajectories, strict=True)
    ]


def _read_score(name: str, value: Any, id: str) -> Scored:
    score: Any = value
    feedback = ""
    if isinstance(value, tuple | list):
        pair = cast("Sequence[Any]", value)
        if len(pair) == 2 and isinstance(pair[1], str):
            score, feedback = pair
    number = finite(score)
    if score is not None and number is None:
        raise ConfigError(
            f"rewards: {name} returned {shorten(value)} for task {id}; expected a finite number, None "
            "where it does not apply, or a pair of one and a text"
        )
    return number, shorten_middle(feedback.strip(), FEEDBACK_CHARS)


def _join(texts: Mapping[str, str]) -> str:
    """Return the functions' texts, each after its function's name if there are several functions."""
    return "\n".join(
        f"{name}: {text}" if len(texts) > 1 else text for name, text in texts.items() if text
    )
