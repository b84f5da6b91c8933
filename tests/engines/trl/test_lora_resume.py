"""A run file with policy.lora: killed until it closes and gone on with, kept, evaluated, and moved elsewhere."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from cotune.run.best import read_best
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

# The reference of the KL term is the policy without its adapter. A fourth and a fifth step would follow, but a
# budget of three batches ends the run before. With this seed the best instruction is not the initial one.
CONTENT: dict[str, Any] = {
    **with_sections(
        strategy={"evolve_every": 0, "prune_every": 0},
        training={"steps": 5, "save_every": 1, "kl": 0.05, "rollout_budget": 18},
        evaluation={"every": 2, "before": False},
    ),
    "policy": {"lora": {"rank": 2, "alpha": 4, "dropout": 0.1}},
    "seed": 2,
}
KILLS = [
    ("log", 2),
    ("checkpoint", 3),
    # The instruction is chosen on validation, the test split rolled out, but not yet written.
    ("third evaluation", 4),
]


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
    assert broken.attempt == 4


def test_what_follows_the_last_step_is_done_anew_and_written_once(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = runs
    assert 4 not in {row["attempt"] for row in broken.read_metrics()}  # training is over
    assert arm(broken)["steps"] == 3
    closing = [row for row in broken.read_events() if row["step"] == 4]
    assert {row["attempt"] for row in closing} == {4}
    kinds = [(row["kind"], row.get("when")) for row in closing]
    assert len(kinds) == len(set(kinds))
    assert {("evaluated", when) for when in ("during", "after", "uplift")} <= set(kinds)
    assert {("best_instruction", None), ("run_finished", None)} <= set(kinds)
    records = [read_best(run.best_path) for run in runs]
    assert records[0] == records[1]
    assert records[0] is not None
    assert records[0].initial_em is not None
    files = [step_purpose for step_purpose in broken.trajectory_files() if step_purpose[0] == 4]
    assert files == [f for f in unbroken.trajectory_files() if f[0] == 4]
    for step, purpose in files:
        rows = [len(run.read_trajectories(step, purpose)) for run in runs]
        assert rows == [3, 3]  # of three questions


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


def test_the_run_is_evaluated_where_it_was_moved_and_its_base_is_elsewhere(
    runs: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    shutil.copytree(runs[0].path, tmp_path / "moved")
    best = tmp_path / "moved" / "best"
    config = json.loads((best / "adapter_config.json").read_text())
    (best / "adapter_config.json").write_text(
        json.dumps({**config, "base_model_name_or_path": "/nowhere"})
    )
    # On the rewards of `killed_run`.
    done = run_module(KILLED_RUN, "nowhere", 0, "evaluate", tmp_path / "moved")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{100 * arm(runs[0])['em']:.1f} % (" in done.stdout
