"""The shortest path: a data set and a reward function, nothing else. As a user starts it."""

import io
import json
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import cotune
from cotune.cli.train import train
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from tests.policy.tiny import small_policy
from tests.run_files import tiny, write

REWARDS = '''
"""Reward functions as for TRL."""


def vowels(completions, level, log_metric, **kwargs):
    """The share of vowels, less for higher levels."""
    log_metric("characters", sum(map(len, completions)) / len(completions))
    shares = [sum(c in "aeiou" for c in text) / max(1, len(text)) for text in completions]
    return [share / n for share, n in zip(shares, level, strict=True)]


async def short(completions, prompts, **kwargs):
    assert all("Question" in p for p in prompts)
    return [1.0 if len(text) < 40 else 0.0 for text in completions]
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty questions, and rewards."""
    rows = [{"question": f"Question {i}?", "level": 1 + i % 2} for i in range(20)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def run_file(folder: Path) -> Path:
    """A run file with a data set and two reward functions."""
    file = folder / "rewards.py"
    raw = tiny(
        folder / "out",
        {
            "policy": {"path": small_policy()},
            "strategy": {"kind": "static"},
            "training": {"steps": 2, "save_every": 1},
            "limits": {"turns": 1},
            "dataset": {"path": str(folder / "data.jsonl"), "validation": 2, "test": 3},
            "rewards": [f"{file}:vowels", {"function": f"{file}:short", "weight": 0.25}],
        },
    )
    del raw["environment"]
    return write(folder / "run.yaml", raw)


def trained(file: Path) -> tuple[RunDir, str]:
    """A finished run, and what it printed."""
    shown = io.StringIO()
    folder = train(file, Console(file=shown, width=200))
    return cotune.open_run(folder), shown.getvalue()


def test_a_program_trains_a_run_file_from_its_fields(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = yaml.safe_load(run_file(folder).read_text())
    fields["training"]["steps"] = 1
    run = cotune.open_run(cotune.train(fields, quiet=True))
    assert run.read_summary() is not None
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="this run is finished; see its report"):
        cotune.resume(run.path)
    with pytest.raises(ConfigError, match=r"^run_file: training.stepz: unknown"):
        cotune.train(fields, assignments=["training.stepz=3"])


def test_a_data_set_and_reward_functions_train(folder: Path) -> None:
    run, shown = trained(run_file(folder))
    rows = run.read_trajectories(1, "train")
    assert len(rows) == 8
    for row in rows:
        parts = row["reward_parts"]
        assert row["reward"] == pytest.approx(parts["vowels"] + 0.25 * parts["short"])
        assert parts["vowels"] <= 1 / (1 + int(row["task"]["question"][9:-1]) % 2)
        assert [turn["action"] for turn in row["turns"]] == ["answer"]
        assert row["sampled"]["instruction"] == ""
    metrics = run.read_metrics()
    assert [row["step"] for row in metrics] == [1, 2]
    mean = sum(row["reward_parts"]["vowels"] for row in rows) / len(rows)
    assert metrics[0]["reward/vowels"] == pytest.approx(mean)
    texts = [row["turns"][0]["text"] for row in rows]
    length = sum(map(len, texts)) / len(texts)
    assert metrics[0]["reward_metric/characters"] == pytest.approx(length)
    (before,) = [e for e in run.read_events() if e.get("when") == "before"]
    assert (before["measure"], before["n"]) == ("mean reward", 3)
    assert "before training: mean reward" in shown
    assert "xact match" not in shown
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Held-out mean reward" in report
    assert "xact match" not in report
    summary = run.read_summary()
    assert summary is not None
    (arm,) = summary["arms"].values()
    assert arm["measure"] == "mean reward"
    low, high = arm["em_interval"]
    assert low <= arm["em"] <= high
