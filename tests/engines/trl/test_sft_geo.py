"""Rejection sampling on the bundled world `geo`, from the run file to the summary."""

from pathlib import Path

import pytest
from rich.console import Console

from cotune.cli.train import train
from cotune.run.run_dir import RunDir
from tests.run_files import tiny, write

CHANGES = {
    "environment": {"train": 40, "validation": 12, "test": 30},
    "strategy": {"kind": "sft", "data": "rollouts", "samples": 3},
    "training": {
        "questions_per_step": 8,
        "group_size": 4,
        "micro_batch_size": 8,
        "rollout_budget": 100,
    },
    "evaluation": {"every": 2},
}


@pytest.mark.slow
def test_the_policys_own_successes_make_it_better(tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "run", CHANGES))
    run = RunDir.open(train(file, Console(quiet=True)))
    summary = run.read_summary()
    assert summary is not None
    arm = summary["arms"]["sft"]
    assert arm["em"] > arm["em_before"]
    assert arm["em_initial_instruction"] == arm["em"]
    assert arm["policy_rollouts"]["train"] == 100
    assert arm["llm_calls"] == 0
    for name in ("report.html", "best/model.safetensors", "best/serving.json"):
        assert (run.path / name).is_file(), name
