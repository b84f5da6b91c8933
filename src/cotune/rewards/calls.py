"""How one reward function is called, and what is wrong with it or with what it gives."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.rewards.batch import GIVEN, Batch

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, **columns)`, sync or async, that returns a number a completion."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A reward function that can be called; see `functions.WeightedReward`."""

    function: RewardFunction
    weight: float
    messages: bool | None


_COMPARED = 8  # rollouts that a function is called on again
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def name_of(function: RewardFunction) -> str:
    """A function's name as TRL has it; what a partial wraps, an object's class, "lambda"."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def is_async(function: RewardFunction) -> bool:
    """Whether calling it gives a coroutine: an async function, a partial of one, an async object."""
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(function, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def required_parameters(function: RewardFunction) -> list[str]:
    """Parameters without a default, besides *args and **kwargs."""
    return [
        p.name
        for p in _parameters(function)
        if p.kind in _NAMED and p.default is inspect.Parameter.empty
    ]


def accepted(function: RewardFunction, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes: all, if it has **kwargs."""
    parameters = _parameters(function)
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return dict(given)
    names = {p.name for p in parameters if p.kind in _NAMED}
    return {name: value for name, value in given.items() if name in names}


def checked(name: str, values: Any, ids: Sequence[str]) -> list[float]:
    """A function's values as numbers.

    Args:
        name: the function's, for errors.
        values: what it returned: a list, tuple, array or tensor of numbers.
        ids: of the tasks of the rollouts it was given.

    Raises:
        ConfigError: they are not one finite number a rollout.
    """
    given: Any = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(
            f"rewards: {name} returned {_shown(values)}; expected a list of {len(ids)} numbers, one "
            "a completion"
        )
    rewards = list(cast("Iterable[Any]", given))
    if len(rewards) != len(ids):
        raise ConfigError(
            f"rewards: {name} returned {len(rewards)} values for {len(ids)} completions; expected "
            "one each: return a list as long as completions"
        )
    return [_number(name, value, id) for value, id in zip(rewards, ids, strict=True)]


def check_columns(name: str, function: RewardFunction, columns: Sequence[str]) -> None:
    """Raises ConfigError for a function that requires what nothing gives."""
    missing = [p for p in required_parameters(function) if p not in (*columns, *GIVEN)]
    if missing:
        raise ConfigError(
            f"rewards: {name} needs the column {missing[0]!r}, but the data has "
            f"{', '.join(columns) or 'no columns'}; rename the parameter or the column"
        )


def call(reward: Loaded, batch: Batch, messages: bool | None = None) -> Any:
    """Whatever a function returns for a batch; with chat messages or texts if `messages` says so."""
    as_messages = reward.messages if messages is None else messages
    return reward.function(**accepted(reward.function, batch.arguments(as_messages)))


def raised(name: str, reward: Loaded, error: Exception, batch: Batch) -> ConfigError:
    """What a function raised, and for which task, where calling it again can tell."""
    where, mend = "", "mend the function"
    if not is_async(reward.function):
        index = _culprit(reward, error, batch)
        if index is not None:
            where = f" for task {batch.ids[index]}"
            mend = _mend(reward, batch)
    elif len(batch.ids) == 1:
        where = f" for task {batch.ids[0]}"
    return ConfigError(f"rewards: {name} raised {_said(error, reward.function)}{where}; {mend}")


def _culprit(reward: Loaded, error: Exception, batch: Batch) -> int | None:
    """The first rollout for which a function raises the same, called on each alone."""
    for i in range(len(batch.ids)):
        if _fails(reward, batch.one(i), type(error)):
            return i
    return None


def _fails(
    reward: Loaded, batch: Batch, kind: type[Exception], messages: bool | None = None
) -> bool:
    try:
        call(reward, batch, messages)
    except Exception as error:  # noqa: BLE001
        return isinstance(error, kind)
    return False


def _mend(reward: Loaded, batch: Batch) -> str:
    """What to change: the form of completions, if the function works with the other one alone."""
    is_text = isinstance(batch.arguments(reward.messages)["completions"][0], str)
    rows = [i for i, t in enumerate(batch.trajectories) if t.own_text.strip()][:_COMPARED]
    never = all(_fails(reward, batch.one(i), Exception) for i in rows)
    if not (rows and never) or _fails(reward, batch, Exception, messages=is_text):
        return "mend the function"
    takes, gets = ("chat messages", "texts") if is_text else ("texts", "chat messages")
    return (
        f"it takes {takes}, but gets {gets}: set messages: {str(is_text).lower()} for it in rewards"
    )


def _number(name: str, value: Any, id: str) -> float:
    if value is None:
        raise ConfigError(
            f"rewards: {name} returned None for task {id}; TRL would leave the rollout out of this "
            "function's sum, but here every rollout needs a number: return 0.0 where it does not apply"
        )
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"rewards: {name} returned {_shown(value)} for task {id}; expected a finite number"
        )
    return number


def _parameters(function: RewardFunction) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Of some built-in callables nobody knows; they get everything.
        return [inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD)]


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:57]}..."


def _said(error: Exception, function: RewardFunction) -> str:
    """An exception with the line of the function that it came from."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    code = code or getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004
    frames = list(_frames(error))
    own = [f for f in frames if code is not None and f[0] == code.co_filename]
    text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if not frames:
        return text
    file, line = (own or frames)[-1]
    return f"{text} ({file.rpartition('/')[2]}, line {line})"


def _frames(error: Exception) -> list[tuple[str, int]]:
    """(file, line) of each frame below the one that caught an exception, outermost first."""
    found: list[tuple[str, int]] = []
    trace = error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found[1:]
