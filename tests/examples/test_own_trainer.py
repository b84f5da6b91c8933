"""The example own_trainer, run as a user would, and resumed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

import cotune
from cotune.engines.trl.trl_joint import CheckpointCallback
from cotune.errors import ConfigError
from examples import own_trainer

# What a step's numbers hold that another machine minute changes.
TIMES = ("time", "attempt", "step_time", "train_runtime")


def figures(folder: Path) -> list[dict[str, Any]]:
    rows = cotune.open_run(folder / "cotune").read_metrics()
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def totals(folder: Path) -> dict[str, int]:
    record = cotune.open_run(folder / "cotune")
    return dict(record.totals().rollouts)


def copying(folder: Path, copy: Path) -> Any:
    """Return an `on_step_begin` that copies a folder as a kill before the fourth step leaves it."""

    def on_step_begin(self: object, args: object, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.global_step == 3:
            shutil.copytree(folder, copy)

    return on_step_begin


def test_inspo_stopped_and_resumed_ends_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    before = dict(os.environ)
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCallback, "on_step_begin", copying(unbroken, broken))
        own_trainer.main(["--steps", "4", "--output", str(unbroken)])
    changed = {name for name in os.environ if os.environ[name] != before.get(name)}
    assert not [name for name in changed if name.startswith(("HF_", "TRL_", "TOKENIZERS"))]

    run = cotune.open_run(unbroken / "cotune")
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, 4]
    kinds = [event["kind"] for event in run.read_events()]
    assert kinds[-1] == "run_finished"
    assert kinds.count("evolution") == 1
    spent = totals(unbroken)
    assert spent["train"] == 4 * 8
    assert 0 < spent["verify"] <= 5 * 4 * 7
    best = (run.best_path / "instruction.txt").read_text(encoding="utf-8").rstrip("\n")
    assert best in [row["text"] for row in run.read_instructions()]

    with pytest.raises(ConfigError, match="holds an earlier run"):
        own_trainer.main(["--steps", "4", "--output", str(broken)])
    own_trainer.main(["--steps", "4", "--output", str(broken), "--resume"])
    assert figures(broken) == figures(unbroken)
    assert totals(broken) == spent
    again = cotune.open_run(broken / "cotune")
    assert again.attempt == 2
    assert [r["text"] for r in again.read_instructions()] == [
        r["text"] for r in run.read_instructions()
    ]
