"""Reward functions with TRL's signature, called with real prompts and the policy's own tokens."""

import functools
import inspect
import logging
import math
import reprlib
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards import REWARDS
from cotune.rewards.boxed import BoxedReward, last_boxed
from cotune.types import Prompt, Task, Trajectory, Turn
from cotune.utils.background import BackgroundLoop
from cotune.utils.importing import import_object
from cotune.utils.numbers import finite
from cotune.utils.text import named, shorten_middle

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, **columns)`, sync or async. It returns a number for each completion, None where
it does not apply, or a pair of one and a text that explains it."""

FEEDBACK_CHARS = 2000
"""Characters that are kept of a function's text; the middle of a longer one is left out."""

GIVEN = (
    "prompts", "completions", "completion_ids", "ground_truths", "trainer_state", "log_extra",
    "log_metric",
)  # fmt: skip
"""Keyword arguments of a function other than the columns of the data."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_LOOP = BackgroundLoop()
_log = logging.getLogger("cotune")
T = TypeVar("T")


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

AnyReward = RewardFunction | str | tuple[RewardFunction | str, float] | WeightedReward
"""Forms of a reward function that `RewardFunctions` accepts."""


class AnswerReward:
    """A built-in reward: compares a rollout's answer with its task's; `exact` if it is 1 or 0."""

    def __init__(
        self, name: str, rewards: Callable[[Sequence[Trajectory]], list[float]], *, exact: bool
    ) -> None:
        self.__name__, self.exact, self._rewards = name, exact, rewards

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[float]:
        return self._rewards(trajectories)


class RewardFunctions:
    """Scores a batch of rollouts by the weighted sum of reward functions.

    Functions are called as TRL calls them, with `prompts`, `completions`, `completion_ids` and every
    column of the data as lists with one entry for each rollout, and with `trainer_state`,
    `log_metric` and `log_extra`. A function without `**kwargs` gets the arguments that it names.
    `ground_truths` are the tasks' accepted answers, unless a column has that name. Async functions run at the same time, on one event loop. A TRL environment also gives
    `environments`, and its own reward is added to the sum. A function that returns None for a rollout is
    left out of its sum; a rollout for which all do has no reward (`Trajectory.scored`).

    The prompt is the one that is trained on (instruction and question, no hint). The completion is the
    conversation after it: the policy's messages with their `tool_calls`, and the tools'. If the data's
    questions are plain texts and there are no tools, both are texts.

    A batch is the rollouts that one process makes together: part of a step or of a verification.

    Args:
        functions: functions, (function, weight) pairs, `WeightedReward`s or references.

    Attributes:
        trainer_state: passed to functions; the trainer's own state if there is a trainer.

    Raises:
        ConfigError: no function, something that is not a function, a weight that is not finite, or
            a reference that cannot be imported.
    """

    def __init__(self, functions: Sequence[AnyReward]) -> None:
        if not functions:
            raise ConfigError("rewards: there are none; expected at least one function")
        self._functions: dict[str, WeightedReward] = {}
        for form in functions:
            reward = _loaded(form)
            self._functions[self._free_name(name_of(_function(reward)))] = reward
        self.trainer_state: Any = SimpleNamespace(global_step=0, max_steps=1, epoch=0.0)
        self._warned = False

    @property
    def measure(self) -> str:
        """Return the name of the mean reward: "exact match" if that is the only reward."""
        reward, *others = self._functions.values()
        function = reward.function
        exact = isinstance(function, AnswerReward) and function.exact and reward.weight == 1
        return "exact match" if exact and not others else "mean reward"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the functions' names, in order; a second one of the same name ends in "_2"."""
        return tuple(self._functions)

    def __call__(
        self, trajectories: Sequence[Trajectory], environment: Environment
    ) -> list[Trajectory]:
        """Return the rollouts with their rewards; see `protocols.Rewards`.

        Raises:
            ConfigError: a function needs a column that the data lacks, raises, or does not return a
                finite number for each rollout.
        """
        if not trajectories:
            return []
        logged, extra = dict[str, list[float]](), dict[str, Sequence[Any]]()
        scores = self._scores(self._functions, trajectories, environment, logged, extra)
        means = {name: sum(values) / len(values) for name, values in logged.items()}
        weights = self.weights(environment)
        own_name = next(iter(weights.keys() - self._functions.keys()), "")
        results: list[Trajectory] = []
        for i, trajectory in enumerate(trajectories):
            values = {name: scores[name][i][0] for name in self._functions}
            if own_name and trajectory.scored:
                values[own_name] = trajectory.reward
            parts = {name: value for name, value in values.items() if value is not None}
            results.append(
                replace(
                    trajectory,
                    reward=sum(value * weights[name] for name, value in parts.items()),
                    parts=parts,
                    feedback=_joined({name: scores[name][i][1] for name in self._functions}),
                    logged=means,
                    extra={column: values[i] for column, values in extra.items()},
                    scored=bool(parts),
                )
            )
        self._warn_of_unscored(results)
        return results

    def weights(self, environment: Environment) -> dict[str, float]:
        """Return the weight of each value that a rollout's `parts` may have, by name, in TRL's order.

        A TRL environment's own reward comes last, with the weight 1.
        """
        weights = {name: reward.weight for name, reward in self._functions.items()}
        if own_name := getattr(environment, "own_reward", ""):
            weights[self._free_name(own_name)] = 1.0
        return weights

    def _warn_of_unscored(self, trajectories: Sequence[Trajectory]) -> None:
        """Warn once of a rollout for which every function returned None."""
        unscored = next((t for t in trajectories if not t.scored), None)
        if unscored is None or self._warned:
            return
        self._warned = True
        _log.warning(
            "rewards: every function returned None for a rollout of task %s, which is not trained on; return a "
            "number from at least one of them",
            unscored.task.id,
        )

    def describe(self) -> list[dict[str, object]]:
        """Return plain data that identifies these functions."""
        return [
            {"function": name, "weight": reward.weight, "messages": reward.messages}
            for name, reward in self._functions.items()
        ]

    def check_tasks(self, tasks: Sequence[Task], split: str, also: Sequence[str] = ()) -> None:
        """Raise ConfigError if the tasks of a split lack something that the functions need.

        Args:
            also: names of arguments that the environment gives them.
        """
        columns = dict.fromkeys([name for task in tasks for name in task.columns] + list(also))
        for name, reward in self._functions.items():
            if not isinstance(reward.function, AnswerReward):
                _check_columns(name, _function(reward), list(columns))
                continue
            without = next((task.id for task in tasks if not task.answers), None)
            if without is not None:
                raise ConfigError(
                    f"rewards: {name} compares with answers, but task {without} of the {split} split "
                    "has none; name their column in dataset.columns: {answers: …}, or drop the row"
                )

    def try_on(self, trajectories: Sequence[Trajectory], environment: Environment) -> None:
        """Call the functions on rollouts that are made up, but not async ones, which may ask a paid judge.

        Raises:
            ConfigError: as when they score.
        """
        functions = {n: r for n, r in self._functions.items() if not is_async(_function(r))}
        self._scores(functions, trajectories, environment, {}, {})

    def _scores(
        self,
        functions: Mapping[str, WeightedReward],
        trajectories: Sequence[Trajectory],
        environment: Environment,
        logged: dict[str, list[float]],
        extra: dict[str, Sequence[Any]],
    ) -> dict[str, list[Scored]]:
        """Return the results of functions; async ones run together, after the others."""

        @functools.cache
        def arguments_for(messages: bool | None) -> dict[str, Any]:
            return _arguments(trajectories, environment, messages) | {
                "trainer_state": self.trainer_state,
                "log_extra": functools.partial(_log_extra, extra, len(trajectories)),
                "log_metric": functools.partial(_log_metric, logged),
            }

        scores: dict[str, list[Scored]] = {}
        returned: dict[str, Any] = {}
        for name, reward in functions.items():
            function = _function(reward)
            if isinstance(function, AnswerReward):
                scores[name] = [(value, "") for value in function(trajectories)]
                continue
            arguments = arguments_for(reward.messages)
            _check_columns(name, function, [column for column in arguments if column not in GIVEN])
            call = functools.partial(function, **_accepted(function, arguments))
            returned[name] = _result(call, name, reward, arguments)
        waiting: dict[str, Future[Any]] = {
            name: _LOOP.submit(_awaited(value))
            for name, value in returned.items()
            if inspect.isawaitable(value)
        }
        ids = [trajectory.task.id for trajectory in trajectories]
        try:
            for name in returned:

                def check(name: str = name) -> list[Scored]:
                    values = waiting[name].result() if name in waiting else returned[name]
                    if isinstance(values, Exception):
                        raise values
                    return _checked(name, values, ids)  # a generator runs only now

                reward = functions[name]
                scores[name] = _result(check, name, reward, arguments_for(reward.messages))
        finally:
            for future in waiting.values():
                future.cancel()
        return scores

    def _free_name(self, name: str) -> str:
        count = 1
        while (free := name if count == 1 else f"{name}_{count}") in self._functions:
            count += 1
        return free


def names_a_function(text: str) -> bool:
    """Return whether a text names a built-in reward or refers to a function, as in a run file."""
    return text in REWARDS or text == "boxed" or ":" in text


def load_reward(reference: str) -> RewardFunction | AnswerReward:
    """Load a reward function by reference, or a built-in one by name; ConfigError for neither."""
    if reference in REWARDS:
        reward = REWARDS[reference]
        return AnswerReward(
            reference,
            lambda ts: [reward(t.answer, t.task.answers) for t in ts],
            exact=reference == "exact_match",
        )
    if reference == "boxed":
        return AnswerReward(reference, boxed_rewards(), exact=True)
    if ":" not in reference:
        names = ", ".join([*REWARDS, "boxed"])
        raise ConfigError(
            f"rewards: {reference!r} is unknown; expected one of {names}, package.module:name or "
            "file.py:name"
        )
    return cast(RewardFunction, import_object(reference, "rewards"))


def boxed_rewards() -> Callable[[Sequence[Trajectory]], list[float]]:
    """Return `BoxedReward` of rollouts, for ground truths that may be whole solutions with a box."""
    reward = BoxedReward()

    def answers(trajectory: Trajectory) -> tuple[str | None, list[str]]:
        truths = [last_boxed(truth) or truth for truth in trajectory.task.answers]
        return last_boxed(trajectory.own_text), truths

    return lambda trajectories: reward.score([answers(t) for t in trajectories])


def _loaded(form: AnyReward) -> WeightedReward:
    """Load and check a function with its weight."""
    if isinstance(form, tuple):
        unweighted, weight = cast("tuple[RewardFunction | str, float]", form)
        form = WeightedReward(function=unweighted, weight=weight)
    elif not isinstance(form, WeightedReward):
        form = WeightedReward(function=form)
    function, weight = form.function, form.weight
    if isinstance(function, str):
        function = load_reward(function)
    label = form.function if isinstance(form.function, str) else name_of(function)
    a_class, a_module = isinstance(function, type), hasattr(function, "named_parameters")
    if not callable(function) or a_class or a_module:
        kind = "a class" if a_class else "a torch module" if a_module else type(function).__name__
        raise ConfigError(
            f"rewards: {label} is {kind}; expected a function or a callable object: wrap it in a "
            "function that takes completions and gives a number for each"
        )
    number = None if isinstance(weight, bool) else finite(weight)
    if number is None:
        raise ConfigError(f"rewards: the weight of {label} is {weight!r}; expected a finite number")
    return replace(form, function=function, weight=number)


def _function(reward: WeightedReward) -> RewardFunction:
    """Return the function of a reward that was loaded."""
    return cast(RewardFunction, reward.function)


def _result(
    call: Callable[[], T], name: str, reward: WeightedReward, arguments: Mapping[str, Any]
) -> T:
    """Return a call's value; ConfigError if it raises, with the form of what the function got."""
    try:
        return call()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        is_text = isinstance(arguments["completions"][0], str)
        form, other = ("texts", "chat messages") if is_text else ("chat messages", "texts")
        raise ConfigError(
            f"rewards: {name} raised {_with_line(error, _function(reward))}; fix the function: it gets "
            f"{form} (messages: {str(is_text).lower()} for it in rewards gives {other})"
        ) from error


async def _awaited(value: Awaitable[Any]) -> Any:
    try:
        return await value
    except Exception as error:  # noqa: BLE001 - asyncio would drop the lines of a TimeoutError
        return error


def _arguments(
    trajectories: Sequence[Trajectory], environment: Environment, messages: bool | None
) -> dict[str, list[Any]]:
    """Return the keyword arguments of reward functions, lists with one entry for each rollout.

    Args:
        messages: whether prompts and completions are chat messages; None follows the data.
    """
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
    # Without distillation the hint is also trained on, but it is no part of the question.
    prompts = [
        environment.messages(t.task, Prompt(t.assignment.trained.instruction)) for t in trajectories
    ]
    arguments["prompts"] = [
        p if chat else "\n\n".join(m["content"] for m in p)
        for p, chat in zip(prompts, chats, strict=True)
    ]
    arguments["completions"] = [
        _conversation(t) if chat else "".join(map(_written, t.turns))
        for t, chat in zip(trajectories, chats, strict=True)
    ]
    # An EOS that the policy did not write itself only closes the episode.
    arguments["completion_ids"] = [
        list(t.completion_ids if t.mask[-1] else t.completion_ids[:-1]) for t in trajectories
    ]
    return arguments | of_environment(environment, trajectories)


def _conversation(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the messages after the prompt: the policy's, and what it was answered."""
    return [
        dict(message)
        for turn in trajectory.turns
        for message in turn.messages or ({"role": "assistant", "content": turn.text},)
    ]


def _written(turn: Turn) -> str:
    """Return the text of a turn; without control tokens, unless it has more parts than the text."""
    message: Mapping[str, Any] = turn.messages[0] if turn.messages else {}
    return str(message["content"]) if message.keys() == {"role", "content"} else turn.text


def of_environment(
    environment: Environment, trajectories: Sequence[Trajectory]
) -> dict[str, list[Any]]:
    """Return the arguments that an environment adds: `environments`, as in TRL."""
    give = getattr(environment, "reward_arguments", None)
    return {} if give is None else give(trajectories)


def _log_extra(
    extra: dict[str, Sequence[Any]], count: int, column: str, values: Sequence[Any]
) -> None:
    if len(values) != count:
        raise ValueError(f"log_extra({column!r}, …) has {len(values)} values; expected {count}")
    extra[column] = values


def _log_metric(logged: dict[str, list[float]], name: str, value: float) -> None:
    if math.isfinite(number := float(value)):
        logged.setdefault(name, []).append(number)


def _unwrapped(function: RewardFunction) -> RewardFunction:
    """Return the function in a partial."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function: RewardFunction) -> str:
    """Return a function's name as in TRL: of a partial the wrapped one's, of an object its class's."""
    function = _unwrapped(function)
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def is_async(function: RewardFunction) -> bool:
    """Return whether a function, or the object or partial around one, is async."""
    function = _unwrapped(function)
    return any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None))))  # noqa: B004


def _accepted(function: RewardFunction, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function accepts: all, if it has **kwargs."""
    parameters = _parameters(function)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(arguments)
    names = {p.name for p in parameters if p.kind in _NAMED}
    return {name: value for name, value in arguments.items() if name in names}


def _checked(name: str, values: Any, ids: Sequence[str]) -> list[Scored]:
    """Return a function's results; ConfigError if it is not one finite number for each rollout."""
    listed: Any = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str | Mapping) or not isinstance(listed, Iterable):
        raise ConfigError(
            f"rewards: {name} returned {_shown(values)}; expected a list of {len(ids)} numbers, one "
            "for each completion"
        )
    rewards = list(cast("Iterable[Any]", listed))
    if len(rewards) != len(ids):
        raise ConfigError(
            f"rewards: {name} returned {len(rewards)} values for {len(ids)} completions; expected "
            "one each: return a list as long as completions"
        )
    return [_scored(name, value, id) for value, id in zip(rewards, ids, strict=True)]


def _joined(texts: Mapping[str, str]) -> str:
    """Return the functions' texts, each after its function's name if there are several functions."""
    named = len(texts) > 1
    return "\n".join(f"{name}: {text}" if named else text for name, text in texts.items() if text)


def _check_columns(name: str, function: RewardFunction, columns: Sequence[str]) -> None:
    """Raise ConfigError for a function with a required parameter that nothing provides."""
    required = [
        p.name
        for p in _parameters(function)
        if p.kind in _NAMED and p.default is inspect.Parameter.empty
    ]
    if missing := [name for name in required if name not in (*columns, *GIVEN)]:
        raise ConfigError(
            f"rewards: {name} needs the column {missing[0]!r}, but the data has "
            f"{', '.join(columns) or 'no columns'}; rename the parameter or the column"
        )


def _scored(name: str, value: Any, id: str) -> Scored:
    score, feedback = value, ""
    if isinstance(value, tuple | list):
        pair = cast("Sequence[Any]", value)
        if len(pair) == 2 and isinstance(pair[1], str):
            score, feedback = pair
    number = None if score is None else finite(score)
    if number is None and score is not None:
        raise ConfigError(
            f"rewards: {name} returned {_shown(value)} for task {id}; expected a finite number, None where it "
            "does not apply, or a pair of one and a text"
        )
    return number, shorten_middle(feedback.strip(), FEEDBACK_CHARS)


def _parameters(function: RewardFunction) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Some built-in callables have no signature; they get every argument.
        return [inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)]


def _shown(value: Any) -> str:
    text = " ".join(reprlib.repr(value).split())
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:57]}..."


def _with_line(error: BaseException, function: RewardFunction) -> str:
    """Return an exception with the last line of the function's own file that led to it."""
    function = _unwrapped(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    code = code or getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    in_its_file = [f for f in frames if code is not None and f.filename == code.co_filename]
    if not frames:
        return named(error)
    last = (in_its_file or frames)[-1]
    return f"{named(error)} ({last.filename.rpartition('/')[2]}, line {last.lineno})"
