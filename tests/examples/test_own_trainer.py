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


def course(run: cotune.RunDir) -> list[object]:
    """What the steps and the instructions of a run were."""
    steps = [(row["step"], row["reward_mean"], row["loss"]) for row in run.read_metrics()]
    return [*steps, *(row["text"] for row in run.read_instructions())]


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
    variables = {name for name in os.environ if os.environ[name] != before.get(name)}
    assert not [name for name in variables if name.startswith(("HF_", "TRL_", "TOKENIZERS"))]

    run = cotune.open_run(unbroken / "cotune")
    assert run.read_events()[-1]["kind"] == "run_finished"
    rollouts = run.totals().rollouts
    assert rollouts["train"] == 4 * 8
    assert 0 < rollouts["verify"] <= 5 * 4 * 7
    best = (run.best_path / "instruction.txt").read_text(encoding="utf-8").rstrip("\n")
    assert best in [row["text"] for row in run.read_instructions()]

    with pytest.raises(ConfigError, match="holds an earlier run"):
        own_trainer.main(["--steps", "4", "--output", str(broken)])
    own_trainer.main(["--steps", "4", "--output", str(broken), "--resume"])
    resumed = cotune.open_run(broken / "cotune")
    assert resumed.attempt == 2
    assert resumed.totals().rollouts == rollouts
    assert course(resumed) == course(run)
