"""What several tests share: tasks, a scripted policy and a loop around a strategy."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.methods.inspo.proposers import propose
from cotune.methods.inspo.replay import Experience
from cotune.protocols import LLM, Strategy
from cotune.rollout.coordinator import Coordinator
from cotune.types import (
    Assignment,
    Instruction,
    Metrics,
    Progress,
    Prompt,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from cotune.worlds.rules_llm import RulesLLM
from cotune_lab.worlds import geo_rules
from cotune_lab.worlds.geo_rules import REMEDIES, Mode

INITIAL = (
    "Answer the given question. You may think inside <think> and </think>. "
    "You can call a search engine by <search> query </search>. "
    "It returns the top results between <information> and </information>. "
    "You can search as many times as you want. "
    "Give the answer inside <answer> and </answer>, for example <answer> Beijing </answer>."
)


def rules_llm(seed: int = 0) -> RulesLLM:
    """Return the offline rules of the world geo, whose questions `make_tasks` gives."""
    return RulesLLM(seed, geo_rules.RULES)


@contextmanager
def raises_line(
    *parts: str, match: str | None = None, error: type[Exception] = ConfigError
) -> Iterator[None]:
    """Expect an error of one line that holds some texts, and matches a pattern if there is one."""
    with pytest.raises(error, match=match) as excinfo:
        yield
    message = str(excinfo.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message


def make_tasks(count: int) -> list[Task]:
    """Two-hop questions, each with one answer of its own."""
    return [
        Task(f"q{i}", f"What is the currency of the country where Town{i} is?", (f"Coin{i}",))
        for i in range(count)
    ]


def reflection_prompt(parent: str, failures: Sequence[Experience], count: int) -> str:
    """INSPO's prompt for better instructions than a parent, "i0"."""
    return propose(Instruction("i0", parent), failures, count).prompt


def paraphrase_prompt(parent: str, *arguments: Any, **more: Any) -> str:
    """INSPO's prompt for rewrites of a parent."""
    return propose(Instruction("i0", parent), None, *arguments, **more).prompt


def jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """Write a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a file."""
    import fcntl

    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def without_loading(out: str) -> str:
    """Return what a command printed after the lines of the stages of its start."""
    return re.sub(r"\A(?:  .* …\n)*", "", out)


def under(task: Task, instruction: str = "", hint: str = "", trained_hint: str = "") -> Assignment:
    """An assignment of one instruction; a hint is sampled under, and trained on if it is also `trained_hint`."""
    prompt = Prompt(instruction, hint)
    return Assignment(task, prompt, Prompt(instruction, trained_hint), "i0", 0)


def make_trajectory(
    assignment: Assignment,
    reward: float,
    text: str = "<answer> wrong </answer>",
    stop: StopReason = StopReason.ANSWERED,
    **fields: Any,
) -> Trajectory:
    """A rollout of one turn and two tokens, of which the second closes it; `fields` replace its own."""
    trajectory = Trajectory(
        assignment, (1,), (1,), (2, 3), (1, 0), (-0.5, 0.0), (Turn(text),), stop, None, reward
    )
    return replace(trajectory, **fields)


def one_step(
    coordinator: Coordinator,
    tasks: Sequence[Task],
    group_size: int,
    progress: Progress,
    before_rollout: Callable[[], None] | None = None,
) -> tuple[list[Trajectory], dict[str, float]]:
    """The acts of one step in the order that every engine has them; its batch and metrics."""
    metrics = coordinator.evolve(progress)
    if before_rollout is not None:
        coordinator.on_rank_zero(before_rollout)
    assignments = coordinator.assign(tasks, group_size, progress)
    trajectories = coordinator.rollout(assignments)
    return trajectories, metrics | coordinator.observe(trajectories, group_size, progress)


def reply(*sentences: str) -> str:
    """Return a reply with candidates that add one sentence each to the initial instruction."""
    rows = [f"<ins_{i}>{INITIAL} {s}</ins_{i}>" for i, s in enumerate(sentences, 1)]
    return "It guessed.\n" + "\n".join(rows)


REMEDY = {*REMEDIES[Mode.WHOLE_QUESTION], *REMEDIES[Mode.ONE_SEARCH]}


def decomposing(text: str) -> float:
    """The chance of a policy that works when it is told to look up one thing at a time."""
    return 0.9 if any(sentence in text for sentence in REMEDY) else 0.2


class ScriptedRollout:
    """A policy whose chance of a right answer depends on the instruction alone.

    Its luck is keyed by purpose, instruction, question and position, so that it has no state.
    """

    def __init__(self, chance: Callable[[str], float]) -> None:
        self.chance = chance
        self.calls: list[tuple[str, list[Assignment]]] = []

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        self.calls.append((purpose, list(assignments)))
        return [self._roll_out(a, f"{purpose}/{i}") for i, a in enumerate(assignments)]

    def _roll_out(self, assignment: Assignment, key: str) -> Trajectory:
        task, text = assignment.task, assignment.sampled.instruction
        digest = hashlib.sha256(f"{key}/{task.id}/{text}".encode()).digest()
        if int.from_bytes(digest[:4], "big") / 2**32 < self.chance(text):
            answer = f"<answer> {task.answers[0]} </answer>"
            return make_trajectory(assignment, 1.0, answer)
        query = task.question.removeprefix("What is the ").rstrip("?")
        wrong = (
            f"<search> {query} </search>\n<information>\n(1) nothing\n</information>\n"
            "<answer> nothing </answer>"
        )
        return make_trajectory(assignment, 0.0, wrong)


class Events:
    """A recorder that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, /, **fields: object) -> None:
        self.rows.append((kind, fields))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.rows if name == kind]


def run(
    strategy: Strategy,
    rollout: ScriptedRollout,
    llm: LLM,
    record: Events,
    steps: range,
    tasks: Sequence[Task],
    group_size: int = 3,
    total: int = 100,
) -> list[Metrics]:
    """The loop's strategy half: evolve, assign, roll out, observe."""
    metrics: list[Metrics] = []
    for step in steps:
        progress = Progress(step, 0, total)
        evolved = strategy.evolve_if_due(progress, rollout, llm, record)
        trajectories = rollout(strategy.assign(tasks, group_size, progress), purpose="train")
        metrics.append({**evolved, **strategy.observe(trajectories, progress, record)})
    return metrics


def tool_schema(name: str, description: str = "", **parameters: Any) -> dict[str, Any]:
    """The schema of a tool whose first parameter is required."""
    inner = {"type": "object", "properties": parameters, "required": list(parameters)[:1]}
    function = {"name": name, "description": description, "parameters": inner}
    return {"type": "function", "function": function}


def tool_call(name: str, **arguments: Any) -> str:
    """A call of a tool as Hermes and Qwen write it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one.
        b: two.
    """
    return a + b


def check_a_stop_changes_nothing(
    fresh: Callable[[], Any], rollout: Any, llm: LLM, tasks: Sequence[Task], stop: int, steps: int
) -> None:
    """Compare a strategy over some steps with one whose state is taken over by another after `stop`."""
    reference, first, second = fresh(), fresh(), fresh()
    all_events, first_events, second_events = Events(), Events(), Events()
    metrics = run(reference, rollout, llm, all_events, range(1, steps + 1), tasks)
    cut = run(first, rollout, llm, first_events, range(1, stop + 1), tasks)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    cut += run(second, rollout, llm, second_events, range(stop + 1, steps + 1), tasks)
    assert cut == metrics
    assert first_events.rows + second_events.rows == all_events.rows
    assert second.state_dict() == reference.state_dict()
    assert second.choice() == reference.choice()


def install(folder: Path, monkeypatch: Any, group: str, *points: str) -> None:
    """Install a package with entry points."""
    info = folder / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *points]))
    monkeypatch.syspath_prepend(folder)
