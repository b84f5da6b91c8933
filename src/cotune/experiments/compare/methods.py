"""The methods that a row of a suite can name, each one run or several in sequence: its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cotune.errors import ConfigError
from cotune.methods.registry import BUILT_IN, added, method_of
from cotune.utils.text import did_you_mean

Group = Literal["trained", "prompt", "staged", "ours"]
"""The heading of a method in tables; see `suite_summary.GROUPS`."""


@dataclass(frozen=True)
class Stage:
    """One run of a method.

    Attributes:
        name: the name of its folder.
        strategy: the run file's `strategy.kind`.
        frozen: whether it searches for an instruction while the policy is frozen.
    """

    name: str
    strategy: str
    frozen: bool = False


@dataclass(frozen=True)
class Method:
    """A method that a suite can name.

    Attributes:
        label: its name in tables.
        group: its heading in tables.
        about: what it does, in a line.
        stages: one after the other; the last one's policy and prompt are the result. Each starts from the best
            policy and the best instruction of the stages before it.
    """

    label: str
    group: Group
    about: str
    stages: tuple[Stage, ...]


_SEARCH = Stage("prompt", "inspo", frozen=True)
_SEARCH_AGAIN = Stage("prompt-2", "inspo", frozen=True)
_TRAIN_FIRST = Stage("first", "static")
_TRAIN = Stage("train", "static")


def _in_stages(label: str, *stages: Stage) -> Method:
    words = (
        "a search for an instruction under the frozen policy" if s.frozen else "GRPO"
        for s in stages
    )
    return Method(label, "staged", ", then ".join(words), stages)


METHODS: Mapping[str, Method] = {
    "grpo": Method("GRPO", "trained", "GRPO under the static instruction", (_TRAIN,)),
    "gepa": Method(
        "GEPA",
        "prompt",
        "the instruction evolved under the frozen policy",
        (Stage("prompt", "gepa", frozen=True),),
    ),
    "prompt-before-rl": _in_stages("Prompt before RL", _SEARCH, _TRAIN),
    "prompt-after-rl": _in_stages("Prompt after RL", _TRAIN, _SEARCH),
    "w-p-w": _in_stages("w -> p -> w", _TRAIN_FIRST, _SEARCH, _TRAIN),
    "p-w-p": _in_stages("p -> w -> p", _SEARCH, _TRAIN, _SEARCH_AGAIN),
    "p-w-p-w": _in_stages("p -> w -> p -> w", _SEARCH, _TRAIN_FIRST, _SEARCH_AGAIN, _TRAIN),
}
"""Methods besides those of the registry, which are named by their `strategy.kind`."""


def method_names() -> list[str]:
    """Return the names of all methods that a suite can name."""
    kinds = [kind for kind in (*BUILT_IN, *added()) if kind != "static"]  # it is grpo here
    return list(dict.fromkeys([*METHODS, *kinds]))


def method_named(name: str) -> Method:
    """Return a method by its name in a suite file.

    Raises:
        ConfigError: no such method; the message names the nearest one.
    """
    if name in METHODS:
        return METHODS[name]
    if name in method_names():
        method = method_of(name)
        return Method(method.label, "ours", method.about, (Stage("train", name),))
    raise ConfigError(
        f"methods: {name!r} is unknown{did_you_mean(name, method_names())}; cotune compare --methods lists the "
        "methods. A row with other options is {method: …, name: …, set: {strategy.…: …}}"
    )
