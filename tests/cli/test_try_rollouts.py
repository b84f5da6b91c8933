"""`cotune try` on the bundled policy."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cotune.cli.evaluate import try_run
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError

RUN = """
output: runs/x
policy: {path: bundled:geo}
environment: {kind: geo, train: 12, validation: 3, test: 3}
limits: {turns: 3, turn_tokens: 64, observation_tokens: 200, trajectory_tokens: 640, prompt_tokens: 384}
strategy: {kind: inspo}
"""


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN, encoding="utf-8")
    return tmp_path / "run.yaml"


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=120), out


def test_rollouts_are_shown_with_their_outcome_and_nothing_is_written(run_file: Path) -> None:
    shown, out = console()
    trajectories = try_run(run_file, shown, count=2, greedy=True)
    text = out.getvalue()
    assert [t.task.id in text for t in trajectories] == [True, True]
    assert text.count("<|im_start|>user") == 2
    assert "[policy] " in text
    assert "[masked] " in text
    assert f"reward {trajectories[0].reward:.3g}" in text
    assert "2 rollouts: mean reward" in text
    assert [path.name for path in run_file.parent.iterdir()] == ["run.yaml"]


def test_a_field_can_be_set_and_the_split_chosen(run_file: Path) -> None:
    shown, out = console()
    few = ["limits.turns=1", "limits.turn_tokens=4"]
    one, _ = try_run(run_file, shown, 2, "test", assignments=few)
    assert one.task.id.startswith("geo-test-")
    assert len(one.turns) == 1
    assert "stopped: " not in out.getvalue()
    assert "0 with an answer" in out.getvalue()
    said = " ".join(out.getvalue().split())
    assert "2 truncated" in said
    assert "100% of the rollouts were truncated, most of them by limits.turn_tokens; raise" in said
    assert said.count("answer: none (cut off)") == 2


def test_a_split_without_questions(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = TaskEnvironment.tasks
    without = lambda own, split: () if split == "validation" else tasks(own, split)  # noqa: E731
    monkeypatch.setattr(TaskEnvironment, "tasks", without)
    with pytest.raises(ConfigError, match="--split validation has no questions"):
        try_run(run_file, console()[0], 1, "validation", assignments=["evaluation.every=0"])
