"""A whole environment in one module, as a package would add it; CONTRIBUTING.md points here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.environments.base import TaskEnvironment
from cotune.environments.registry import EnvironmentKind
from cotune.types import Action, Response, Section, Task, Trajectory


@dataclass(frozen=True, kw_only=True)
class EchoOptions(Section):
    """The policy repeats a word.

    Attributes:
        word: the word; not empty.
    """

    kind: Literal["echo"] = "echo"
    word: str = "yes"

    def __post_init__(self) -> None:
        if not self.word:
            raise ValueError("environment.word is empty; expected a word")


class EchoEnvironment(TaskEnvironment):
    """Questions that are answered by a word, in one turn."""

    def __init__(self, options: EchoOptions) -> None:
        questions = [Task(f"q{i}", f"Say {options.word}, {i}.", (options.word,)) for i in range(6)]
        splits = {"train": questions[:3], "validation": questions[3:4], "test": questions[4:]}
        super().__init__(splits, "Repeat the word.")

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        return [Response(done=True, action="answer") for _ in actions]

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        text = trajectory.own_text.strip()
        return float(text == trajectory.task.answers[0]), text or None


KIND = EnvironmentKind(options=EchoOptions, build=lambda options, tasks: EchoEnvironment(options))
