"""The methods that a row of a suite can name, each one run or several in sequence: its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
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


def _staged(label: str, letters: str) -> Method:
    """Return a method of searches for an instruction by INSPO (p) and of trainings by GRPO (w)."""
    stages: list[Stage] = []
    for i, letter in enumerate(letters):
        last, before = i == len(letters) - 1, letters[:i]
        search = letter == "p"
        # The last training is "train", as in a method of one stage.
        name = "prompt" if search else "first" if "w" in letters[i + 1 :] else "train"
        stages.append(
            Stage(
                name=f"{name}-2" if search and "p" in before else name,
                strategy="inspo" if search else "static",
                frozen=search,
                equal=not last,
                continues_policy="w" in before,
                continues_instruction="p" in before,
            )
        )
    words = {"p": "a search for an instruction under the frozen policy", "w": "GRPO"}
    about = ", then ".join(words[letter] for letter in letters)
    return Method(label=label, group="staged", about=about, stages=tuple(stages))


METHODS: Mapping[str, Method] = {
    "grpo": Method(label="GRPO", group="trained", about="GRPO under the static instruction"),
    "gepa": Method(
        label="GEPA",
        group="prompt",
        about="the instruction evolved under the frozen policy",
        stages=(Stage(name="prompt", strategy="gepa", frozen=True),),
    ),
    "prompt-before-rl": _staged("Prompt before RL", "pw"),
    "prompt-after-rl": _staged("Prompt after RL", "wp"),
    "w-p-w": _staged("w -> p -> w", "wpw"),
    "p-w-p": _staged("p -> w -> p", "pwp"),
    "p-w-p-w": _staged("p -> w -> p -> w", "pwpw"),
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
