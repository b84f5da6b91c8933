"""Suites over the bundled world, and finished run folders that no training has to make."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.experiments import chains
from cotune.run.record import Record
from cotune.types import Assignment, Prompt, Task, Trajectory
from tests.helpers import make_trajectory
from tests.run_files import tiny

STRATA = ("1 hop", "1 hop", "2 hops", "2 hops")


def suite_file(folder: Path, **changes: Any) -> Path:
    """A suite of two methods on a tiny run file."""
    raw = {
        "name": "small", "output": str(folder / "out"), "base": tiny(folder / "unused"),
        "seeds": [0, 1], "budget": 40, "baseline": "grpo", "methods": ["grpo", "inspo"], **changes,
    }  # fmt: skip
    file = folder / "suite.yaml"
    file.write_text(yaml.safe_dump(raw))
    return file


def value_of(words: Sequence[str], option: str) -> str | None:
    """The value of an option of a command; None without it."""
    return words[words.index(option) + 1] if option in words else None


def trajectory(task: Task, reward: float, prompt: Prompt) -> Trajectory:
    return make_trajectory(Assignment(task, prompt, prompt, "i0", 0), reward)


def finish(
    config: RunConfig,
    rewards: Sequence[float],
    rollouts: Mapping[str, int],
    plain: Sequence[float] | None = None,
    instruction: str = "Be good.",
    strata: Sequence[str] = STRATA,
    figures: Mapping[str, Any] | None = None,
    **summary: Any,
) -> None:
    """What a run leaves that went to its end, in the folder of its run file."""
    run = Record.open(config.output) if Record.is_run(config.output) else None
    run = run or Record.create(config.output, dump_config(config))
    tasks = [Task(f"q{i}", f"Question {i}?", ("a",), s) for i, s in enumerate(strata)]
    for when, marks in (("after", rewards), ("plain", plain)):
        if marks is None:
            continue
        run.event("evaluated", 3, when=when, split="test", em=sum(marks) / len(marks), n=len(marks))
        prompt = Prompt(instruction if when == "after" else "Initial.")
        rows = [trajectory(t, r, prompt) for t, r in zip(tasks, marks, strict=True)]
        run.rollouts(3, f"evaluate_{when}", rows)
    arm = {
        "measure": "exact match", "policy_rollouts": dict(rollouts), "generated_tokens": 1000,
        "llm_calls": 2, "money": 0.5, "seconds": 10.0, "best_instruction": instruction,
        **(figures or {}),
    }  # fmt: skip
    run.write_summary({"name": config.name, "arms": {"static": arm}, **summary})


class Process:
    """In place of a child: does its work between the first look at it and the second."""

    def __init__(self, words: Sequence[str], outcome: Any) -> None:
        self.words, self._outcome = tuple(words), outcome
        self._status: int | None = None
        self._looked = False

    def poll(self) -> int | None:
        if not self._looked:
            self._looked = True
        elif self._status is None:
            on_folder = self.words[0] in ("resume", "export", "evaluate")
            at = Path(self.words[1] if on_folder else self.words[-2])
            raw = Record.open(at).read_config() if at.is_dir() else yaml.safe_load(at.read_text())
            self._status = int(self._outcome(parse_config(raw, str(at)), self.words) or 0)
        return self._status

    def terminate(self) -> None:
        self._status = -15

    def wait(self) -> int:
        return self._status or 0


class Processes:
    """Stands in for `processes.start`; `outcome(config, words)` makes a run's files.

    Attributes:
        started: the arguments of every process, in order.
        gpus: the GPU that each was given.
        children: the processes.
    """

    def __init__(self, monkeypatch: Any, outcome: Any) -> None:
        self.started: list[tuple[str, ...]] = []
        self.gpus: list[str | None] = []
        self.children: list[Process] = []
        self._outcome = outcome
        monkeypatch.setattr(chains, "start", self._start)

    def _start(self, words: Sequence[str], log: Path, threads: int | None, gpu: str | None) -> Any:
        self.started.append(tuple(words))
        self.gpus.append(gpu)
        log.write_text("a first line\nValueError: it broke\n")
        self.children.append(Process(words, self._outcome))
        return self.children[-1]


def output_of(command: Callable[[Console], object]) -> str:
    """What a command prints on its console, of 200 columns."""
    out = io.StringIO()
    command(Console(file=out, width=200))
    return out.getvalue()


Start = Callable[[Any], Processes]
"""The fixture `start`: has `outcome(config, words)` make the files of each run."""

HALF, ALL = (1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 1.0)


def good(config: RunConfig, _: Any = None) -> int:
    finish(config, ALL if config.strategy.kind == "inspo" else HALF, {"train": 40})
    return 0
