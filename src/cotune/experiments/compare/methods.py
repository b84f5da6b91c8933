"""The methods that a row of a suite can name, each one run or several in sequence: its stages."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cotune.errors import ConfigError
from cotune.methods.registry import BUILT_IN, added, method_of
from cotune.utils.text import did_you_mean

Group = Literal["trained", "prompt", "staged", "ours"]
"""The heading of a method in tables; see `suite_summary.GROUPS`."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a method.

    Attributes:
        name: the name of its folder.
        strategy: the run file's `strategy.kind`.
        frozen: whether it searches for an instruction while the policy is frozen.
        equal: whether it gets an equal part of the budget among the stages of its sort (those that search
            share `MethodEntry.share`, those that train the rest); otherwise what the earlier stages have left.
        continues_policy: whether it starts from the best policy of the stage before, not from the run file's.
        continues_instruction: whether it starts from the best instruction of the stage before, likewise.
    """

    name: str = "train"
    strategy: str = "static"
    frozen: bool = False
    equal: bool = False
    continues_policy: bool = False
    continues_instruction: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method that a suite can name.

    Attributes:
        label: its name in tables.
        group: its heading in tables.
        about: what it does, in a line.
        stages: one after the other; the last one's policy and prompt are the result.
    """

    label: str
    group: Group
    about: str
    stages: tuple[Stage, ...] = (Stage(),)


_SEARCH = Stage(name="prompt", strategy="inspo", frozen=True)
"""INSPO searches for an instruction."""
_ON = Stage(continues_policy=True, continues_instruction=True)

METHODS: Mapping[str, Method] = {
    "grpo": Method(label="GRPO", group="trained", about="GRPO under the static instruction"),
    "gepa": Method(
        label="GEPA",
        group="prompt",
        about="the instruction evolved under the frozen policy",
        stages=(Stage(name="prompt", strategy="gepa", frozen=True),),
    ),
    "prompt-before-rl": Method(
        label="Prompt before RL",
        group="staged",
        about="an instruction found under the initial policy, then GRPO under it",
        stages=(replace(_SEARCH, equal=True), Stage(continues_instruction=True)),
    ),
    "prompt-after-rl": Method(
        label="Prompt after RL",
        group="staged",
        about="GRPO, then an instruction found under the trained policy",
        stages=(Stage(equal=True), replace(_SEARCH, continues_policy=True)),
    ),
    "w-p-w": Method(
        label="w -> p -> w",
        group="staged",
        about="GRPO, an instruction found under the trained policy, GRPO under that",
        stages=(
            Stage(name="first", equal=True),
            replace(_SEARCH, equal=True, continues_policy=True),
            _ON,
        ),
    ),
    "p-w-p": Method(
        label="p -> w -> p",
        group="staged",
        about="an instruction, GRPO under it, an instruction found under the trained policy",
        stages=(
            replace(_SEARCH, equal=True),
            Stage(name="first", equal=True, continues_instruction=True),
            replace(_ON, name="prompt-2", strategy="inspo", frozen=True),
        ),
    ),
    "p-w-p-w": Method(
        label="p -> w -> p -> w",
        group="staged",
        about="an instruction and GRPO under it, twice",
        stages=(
            replace(_SEARCH, equal=True),
            Stage(name="first", equal=True, continues_instruction=True),
            replace(_ON, name="prompt-2", strategy="inspo", frozen=True, equal=True),
            _ON,
        ),
    ),
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
        return Method(
            label=method.label, group="ours", about=method.about, stages=(Stage(strategy=name),)
        )
    raise ConfigError(
        f"methods: {name!r} is unknown{did_you_mean(name, method_names())}; cotune compare --methods lists the "
        "methods. A row with other options is {method: …, name: …, set: {strategy.…: …}}"
    )
