"""The methods that a row of a suite can name, each one run or several in sequence: its stages."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cotune.errors import ConfigError
from cotune.methods.registry import kinds, method_of

Group = Literal["trained", "prompt", "staged", "ours"]
"""The heading of a method in tables; see `suite_summary.GROUPS`."""


@dataclass(frozen=True)
class Method:
    """A method that a suite can name.

    Attributes:
        label: its name in tables.
        group: its heading in tables.
        stages: by the name of its folder, the `strategy.kind` of each run, one after the other; see `is_search`. Each
            starts from the best policy and the best instruction of those before it.
    """

    label: str
    group: Group
    stages: Mapping[str, str]


def is_search(stage: str) -> bool:
    """Return whether a stage searches for an instruction while the policy is frozen."""
    return stage.startswith("prompt")


def _in_stages(label: str, *names: str) -> Method:
    stages = {name: "inspo" if is_search(name) else "static" for name in names}
    return Method(label, "staged", stages)


METHODS: Mapping[str, Method] = {
    "grpo": Method("GRPO", "trained", {"train": "static"}),
    "gepa": Method("GEPA", "prompt", {"prompt": "gepa"}),
    "prompt-before-rl": _in_stages("Prompt before RL", "prompt", "train"),
    "prompt-after-rl": _in_stages("Prompt after RL", "train", "prompt"),
    "w-p-w": _in_stages("w -> p -> w", "first", "prompt", "train"),
    "p-w-p": _in_stages("p -> w -> p", "prompt", "train", "prompt-2"),
    "p-w-p-w": _in_stages("p -> w -> p -> w", "prompt", "first", "prompt-2", "train"),
}
"""Methods besides those of the registry, which are named by their `strategy.kind`."""


def method_names() -> list[str]:
    """Return the names of all methods that a suite can name."""
    strategies = [kind for kind in kinds() if kind != "static"]  # it is grpo here
    return list(dict.fromkeys([*METHODS, *strategies]))


def method_named(name: str) -> Method:
    """Return a method by its name in a suite file.

    Raises:
        ConfigError: no such method; the message names all.
    """
    if name in METHODS:
        return METHODS[name]
    if name in method_names():
        return Method(method_of(name).label, "ours", {"train": name})
    raise ConfigError(
        f"methods: {name!r} is unknown; expected one of {', '.join(method_names())}. A row with other options is "
        "{method: …, name: …, set: {strategy.…: …}}"
    )
