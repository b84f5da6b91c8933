"""The registry entry of a kind of environment: all that the rest of the program knows about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, get_type_hints

from cotune.data.splits import SPLITS
from cotune.protocols import Environment
from cotune.types import Task

Tasks = Mapping[str, Sequence[Task]]
"""Tasks by split."""


class EnvironmentOptions(Protocol):
    """The options of an environment: a frozen dataclass or model with `kind: Literal["…"] = "…"`."""

    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class EnvironmentKind:
    """A kind of environment, as the run file, its checks, `cotune plan` and `cotune doctor` know it.

    Attributes:
        options: the class of its options, a section `environment` of the run file.
        build: makes the environment of its options and the tasks of `dataset`, which are None
            without that section.
        dataset: whether its questions are those of `dataset`.
        sizes: returns the questions of each split without building it; None builds it.
        runs_user_code: whether it calls code of the user's, which may need the network.
        offline_rules: whether it has rules that write instructions in an LLM's place: a method
            `offline_rules(seed)` of the environment returns them.
        policy: the folder of a small policy made for it, "bundled:KIND" in `policy.path`; None is none.
        extra: cotune's extra that it needs, named after the package; "" is none.
    """

    options: type[EnvironmentOptions]
    build: Callable[[Any, Tasks | None], Environment]
    dataset: Literal["required", "optional", "none"] = "none"
    sizes: Callable[[Any], Mapping[str, int]] | None = None
    runs_user_code: bool = False
    offline_rules: bool = False
    policy: Path | None = None
    extra: str = ""

    @property
    def kind(self) -> str:
        """Return `environment.kind` as in the run file."""
        return str(get_args(get_type_hints(self.options)["kind"])[0])


def numbers_of_questions(options: object) -> dict[str, int]:
    """Return the options `train`, `validation` and `test` of an environment that makes its questions."""
    return {split: int(getattr(options, split)) for split in SPLITS}
