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
    recorder = Noted()
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    arguments = {"reward_funcs": [recorder, length, answered], "environment": Letters()}
    weights = [1.0, 0.5, 0.25]
    weighted = begin(
        tmp_path, trainer_arguments=arguments, max_steps=2, reward_weights=weights, **saving
    )
    assert recorder.steps == []  # not called before training
    weighted.trainer.train()
    assert recorder.steps[:2] == [0, 1]
    parts = [row["reward_parts"] for row in weighted.run.read_trajectories(1, "train")]
    for row, row_parts in zip(weighted.run.read_trajectories(1, "train"), parts, strict=True):
        partial_sum = row_parts["Noted"] + 0.5 * row_parts["length"]
        assert row["reward"] == pytest.approx(partial_sum + 0.25 * row_parts.get("answered", 0.0))
    assert {len(row_parts) for row_parts in parts} == {2, 3}
    (row, _) = weighted.run.read_metrics()
    assert "reward/length" in row
    logged = weighted.trainer.state.log_history[0]
    for name in ("Noted", "length", "answered"):  # without those that it returned None for
        values = [row_parts[name] for row_parts in parts if name in row_parts]
        assert logged[f"rewards/{name}/mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)
    rewards = weighted.run.read_config()["rewards"]
    names = [r["function"].rpartition(":")[2] for r in rewards]
    assert list(zip(names, [r["weight"] for r in rewards], strict=True)) == [
        ("Noted", 1.0),
        ("length", 0.5),
        ("answered", 0.25),
    ]
    again = begin(
        tmp_path, trainer_arguments=arguments, max_steps=3, reward_weights=[1.0, 0.5, 0.5], **saving
    )
    with pytest.raises(ConfigError, match=r"^rewards: differs from what the saved run began with"):
        again.trainer.train(resume_from_checkpoint=True)
