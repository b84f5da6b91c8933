"""Reward functions written for TRL, in a script."""

from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from tests.engines.trl.script_runs import begin
from tests.policy.tiny import Letters


class Noted:
    """A reward that keeps the trainer's step at each call."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        self.steps.append(trainer_state.global_step)
        return [text.count("a") / max(1, len(text)) for text in completions]


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def answered(completions: list[str], **_: Any) -> list[float | None]:
    return [1.0 if "e" in text else None for text in completions]


def test_a_script_is_scored_by_functions_that_see_the_trainers_state(tmp_path: Path) -> None:
    noted = Noted()
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    given = {"reward_funcs": [noted, length, answered], "environment": Letters()}
    weights = [1.0, 0.5, 0.25]
    weighted = begin(
        tmp_path, trainer_arguments=given, max_steps=2, reward_weights=weights, **saving
    )
    assert noted.steps == []  # not called before training
    weighted.trainer.train()
    assert noted.steps[:2] == [0, 1]
    parts = [row["reward_parts"] for row in weighted.run.read_trajectories(1, "train")]
    for row, own in zip(weighted.run.read_trajectories(1, "train"), parts, strict=True):
        rest = own["Noted"] + 0.5 * own["length"]
        assert row["reward"] == pytest.approx(rest + 0.25 * own.get("answered", 0.0))
    assert {len(own) for own in parts} == {2, 3}
    (row, _) = weighted.run.read_metrics()
    assert "reward/length" in row
    logged = weighted.trainer.state.log_history[0]
    for name in ("Noted", "length", "answered"):  # without those that it returned None for
        values = [own[name] for own in parts if name in own]
        assert logged[f"rewards/{name}/mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)
    kept = weighted.run.read_config()["rewards"]
    names = [r["function"].rpartition(":")[2] for r in kept]
    assert list(zip(names, [r["weight"] for r in kept], strict=True)) == [
        ("Noted", 1.0),
        ("length", 0.5),
        ("answered", 0.25),
    ]
    again = begin(
        tmp_path, trainer_arguments=given, max_steps=3, reward_weights=[1.0, 0.5, 0.5], **saving
    )
    with pytest.raises(ConfigError, match=r"^rewards: differs from what the saved run began with"):
        again.trainer.train(resume_from_checkpoint=True)
