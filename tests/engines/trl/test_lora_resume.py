"""A run file with policy.lora: killed and gone on with, kept, evaluated, and moved elsewhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    KILLED_RUN,
    arm,
    check_that_they_end_alike,
    numbers,
    run_file,
    run_with_kills,
    with_sections,
)
from tests.forked import run_module

pytestmark = pytest.mark.slow

STATIC = {"strategy": {"kind": "static"}}
# The reference of the KL term is the policy without its adapter.
CONTENT: dict[str, Any] = {
    **with_sections(
        training={"steps": 3, "save_every": 1, "kl": 0.05}, evaluation={"every": 2, "before": False}
    ),
    **STATIC,
    "policy": {"lora": {"rank": 2, "alpha": 4, "dropout": 0.1}},
}
KILLS = [("log", 2), ("checkpoint", 3)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    folder = tmp_path_factory.mktemp("runs")
    unbroken = run_with_kills(run_file(folder, "unbroken", CONTENT), [])
    return unbroken, run_with_kills(run_file(folder, "broken", CONTENT), KILLS)


def test_a_killed_run_ends_as_one_that_never_was(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    check_that_they_end_alike(broken, unbroken)
    assert [row["step"] for row in numbers(unbroken)] == [1, 2, 3]
    assert any(row["grad_norm"] > 0 for row in numbers(unbroken))
    assert broken.attempt == 3


def test_checkpoints_and_the_best_policy_hold_adapters(runs: tuple[RunDir, RunDir]) -> None:
    for run in runs:
        folders = [run.best_path, *run.checkpoints_path.glob("checkpoint-*")]
        assert len(folders) == 3
        for folder in folders:
            assert (folder / "adapter_config.json").is_file()
            assert not (folder / "model.safetensors").exists()
    kept, other = (load_file(run.best_path / "adapter_model.safetensors") for run in runs)
    assert kept.keys() == other.keys()
    assert all(kept[name].equal(other[name]) for name in kept)
    assert any(kept[name].any() for name in kept if "lora_B" in name)


def evaluated(folder: Path) -> str:
    """What `cotune evaluate` prints, on the rewards of `killed_run`."""
    done = run_module(KILLED_RUN, "nowhere", 0, "evaluate", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_run_is_evaluated_where_it_was_moved_and_its_base_is_elsewhere(
    runs: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    shutil.copytree(runs[0].path, tmp_path / "moved")
    best = tmp_path / "moved" / "best"
    config = json.loads((best / "adapter_config.json").read_text())
    (best / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "/nowhere"})
    )
    assert f"{100 * arm(runs[0])['em']:.1f} % (" in evaluated(tmp_path / "moved")
