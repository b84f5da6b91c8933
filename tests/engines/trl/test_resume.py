"""Runs that are killed end as ones that never were."""

import json
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from cotune.run.best import read_best
from cotune.run.costs import CostRow
from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    KILLED_RUN,
    OF_ONE_ATTEMPT,
    RUN,
    arm,
    check_that_they_end_alike,
    cotune,
    learnt,
    numbers,
    run_file,
    run_with_kills,
    spent,
    with_sections,
    without,
)
from tests.forked import run_module
from tests.policy.tiny import small_policy

pytestmark = pytest.mark.slow

KILLS = [
    ("train", 2),  # epoch 1, before there is any checkpoint: starts anew
    ("verify", 3),  # in an evolution: from 2
    ("checkpoint", 4),  # epoch 2, a torn pair: from 2 again
    ("state", 6),  # in our own half: from 4
    ("log", 8),  # epoch 3, weights updated, nothing of it written: from 6
]


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_never_was(tmp_path: Path) -> None:
    unbroken = run_with_kills(run_file(tmp_path, "unbroken"), [])
    broken = run_with_kills(run_file(tmp_path, "broken"), KILLS)
    # Every resume went on from the newest whole checkpoint.
    resumed = [row["from_step"] for row in broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [2, 2, 4, 6]
    assert (unbroken.attempt, broken.attempt) == (1, 6)
    check_that_they_end_alike(broken, unbroken)
    rows = numbers(unbroken)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert all((row["grad_norm"] > 0) == (row["zero_advantage_share"] < 1) for row in rows)
    assert sum(row["grad_norm"] > 0 for row in rows) > 4
    kinds = {row["kind"] for row in learnt(unbroken)}
    assert {"population", "evolution", "instruction_born", "evaluated"} <= kinds
    lineages = [without(run.read_instructions(), OF_ONE_ATTEMPT) for run in (unbroken, broken)]
    assert lineages[0] == lineages[1]
    assert len(lineages[0]) >= 3
    assert read_best(broken.best_path) == read_best(unbroken.best_path)
    # What was spent in vain is told apart.
    assert spent(unbroken)["rollouts"]["train"] == 8 * 6
    assert spent(unbroken)["rollouts"]["verify"] > 0
    uncommitted = [row for row in broken.read_costs() if not row.committed]
    assert {row.kind for row in uncommitted} >= {"train", "verify"}
    # A finished run is not resumed.
    result = cotune("nowhere", 0, "resume", str(broken.path))
    assert result.returncode == 2
    assert "is finished" in result.stdout + result.stderr


TWO_STEPS = with_sections(
    training={"steps": 2, "save_every": 1}, evaluation={"every": 1, "before": False}
)
# What a method's run file has in place of RUN's, and where the run is killed.
METHODS: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
    "mixed groups": (
        {**TWO_STEPS, "strategy": {**RUN["strategy"], "groups": "mixed", "target": "initial", "evolve_every": 1}},
        [("state", 2)],
    ),
    "fst": (
        {**TWO_STEPS, "strategy": {
            "kind": "fst", "target": "initial", "prompts": 2, "budget": 24, "dev_size": 3, "evolve_every": 1,
            "distillation": {"ratio": "masked_signed"},
        }},
        [("state", 2)],
    ),
    "gepa on a frozen policy": (
        {
            **with_sections(training={"frozen": True}, evaluation={"every": 0, "before": True}),
            "strategy": {"kind": "gepa", "budget": 24, "dev_size": 2},
        },
        [("before third evolve", 1), ("evolve", 1)],
    ),
    # Saved after 2, 4 and 6: while the rollouts of a trial are made, and once it is decided.
    "trial": (
        {
            **with_sections(
                strategy={"verification": "trial", "verification_tasks": 6, "verification_rounds": 1},
                training={"steps": 7},
                evaluation={"every": 0, "before": False},
            ),
            "policy": {"path": small_policy("bundled:ladder")},
        },
        [("train", 4), ("state", 6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_runs_of_other_methods_resume_exactly(name: str, tmp_path: Path) -> None:
    content, kills = METHODS[name]
    unbroken = run_with_kills(run_file(tmp_path, "unbroken", content), [])
    broken = run_with_kills(run_file(tmp_path, "broken", content), kills)
    assert broken.attempt == 1 + len(kills)
    check_that_they_end_alike(broken, unbroken)
    kind = {"trial": "trial", "gepa on a frozen policy": "gepa_phase_ended"}.get(name, "population")
    assert kind in {row["kind"] for row in learnt(unbroken)}
    assert not any(row.kind == "verify" for row in broken.read_costs() if name == "trial")


# ---- an evolution that is killed in its middle, again and again


@dataclass(frozen=True)
class Case:
    """A run file whose evolution before step `at` follows a checkpoint, and where it is killed."""

    content: dict[str, Any]
    at: int
    purpose: str
    kills: tuple[str, ...]


INSPO = Case(
    # Several rounds of one candidate each, from step 2 on.
    with_sections(
        strategy={"candidates": 1, "verification_rounds": 4, "evolve_until": 3},
        training={"steps": 3},
        evaluation={"every": 0, "before": False},
    ),
    at=3,
    purpose="verify",
    kills=(
        "second reply",  # the first reply and its verification are recorded
        "before verify",  # between the second reply and its verification
        "verify",  # the second verification is made, but not yet recorded: it is lost
        "train",  # the phase is whole, its step is not saved
    ),
)
P2O = Case(
    {
        **with_sections(
            training={"steps": 4, "questions_per_step": 4, "micro_batch_size": 6, "save_every": 3},
            evaluation={"every": 0, "before": False},
        ),
        "environment": {"kind": "ladder", "train": 12, "validation": 4, "test": 4},
        "limits": {
            "turns": 1,
            "turn_tokens": 24,
            "observation_tokens": 1,
            "trajectory_tokens": 26,
            "prompt_tokens": 192,
        },
        "strategy": {
            "kind": "p2o",
            "successes_below": 3,
            "hints": {"hard_set_min_count": 2, "dev_size": 4, "budget": 24, "beam": 2},
        },
    },
    at=4,  # the end of the first epoch: 12 questions, 4 a step
    purpose="evolve",
    kills=("second reply", "before third evolve", "evolve", "train"),
)


def calls(run: RunDir) -> Counter[tuple[str, int, int]]:
    """Purpose, step and rollouts of each call that was really made, in all attempts."""
    lines = Path(f"{run.path}.calls").read_text().splitlines()
    return Counter((w[0], int(w[1]), int(w[2])) for w in map(str.split, lines))


def call(row: CostRow) -> tuple[str, int, int]:
    return row.kind, row.step, 1 if row.kind == "llm" else row.rollouts


@pytest.mark.parametrize("case", [INSPO, P2O], ids=["inspo", "p2o"])
def test_an_evolution_that_is_killed_in_its_middle_is_paid_once(case: Case, tmp_path: Path) -> None:
    world = case.content["environment"]["kind"]
    content = {**case.content, "policy": {"path": small_policy(f"bundled:{world}")}}
    kills = [(place, case.at) for place in case.kills]
    unbroken, broken = (
        run_with_kills(run_file(tmp_path, name, content), places, tmp_path / f"{name}.calls")
        for name, places in (("unbroken", []), ("broken", kills))
    )
    # Every kill was in or after the phase.
    resumed = [row["from_step"] for row in broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [case.at - 1] * len(kills)
    inside = [purpose for purpose, step, _ in calls(unbroken).elements() if step == case.at]
    assert inside.count("llm") >= 2
    assert inside.count(case.purpose) >= 2
    # No reply is asked for twice.
    assert not calls(unbroken) - calls(broken)
    again = (calls(broken) - calls(unbroken)).elements()
    expected = {(case.purpose, case.at), ("train", case.at)}
    assert {(purpose, step) for purpose, step, _ in again} == expected
    check_that_they_end_alike(broken, unbroken)
    assert len(numbers(unbroken)) == case.content["training"]["steps"]
    # What was used again is committed, and the rest is not.
    rows = broken.read_costs()
    assert Counter(call(row) for row in rows if not row.reused) == calls(broken)
    assert Counter(call(row) for row in rows if row.committed) == calls(unbroken)
    assert any(row.reused for row in rows)


# ---- a run file with policy.lora


# The reference of the KL term is the policy without its adapter. A fourth and a fifth step would follow, but a
# budget of three batches ends the run before. With this seed the best instruction is not the initial one.
ADAPTER: dict[str, Any] = {
    **with_sections(
        strategy={"evolve_every": 0, "prune_every": 0},
        training={"steps": 5, "save_every": 1, "kl": 0.05, "rollout_budget": 18},
        evaluation={"every": 2, "before": False},
    ),
    "policy": {"lora": {"rank": 2, "alpha": 4, "dropout": 0.1}},
    "seed": 2,
}
ADAPTERS_KILLS = [
    ("log", 2),
    ("checkpoint", 3),
    # The instruction is chosen on validation, the test split rolled out, but not yet written.
    ("third evaluation", 4),
]


def test_an_adapters_run_that_is_killed_until_it_closes_ends_as_one_that_never_was(
    tmp_path: Path,
) -> None:
    unbroken = run_with_kills(run_file(tmp_path, "unbroken", ADAPTER), [])
    broken = run_with_kills(run_file(tmp_path, "broken", ADAPTER), ADAPTERS_KILLS)
    runs = (unbroken, broken)
    check_that_they_end_alike(broken, unbroken)
    assert [row["step"] for row in numbers(unbroken)] == [1, 2, 3]
    assert any(row["grad_norm"] > 0 for row in numbers(unbroken))
    assert broken.attempt == 4
    # What follows the last step is done anew and written once.
    assert 4 not in {row["attempt"] for row in broken.read_metrics()}  # training is over
    assert arm(broken)["steps"] == 3
    closing = [row for row in broken.read_events() if row["step"] == 4]
    assert {row["attempt"] for row in closing} == {4}
    kinds = [(row["kind"], row.get("when")) for row in closing]
    assert len(kinds) == len(set(kinds))
    assert {("evaluated", when) for when in ("during", "after", "uplift")} <= set(kinds)
    assert {("best_instruction", None), ("run_finished", None)} <= set(kinds)
    record = read_best(broken.best_path)
    assert record == read_best(unbroken.best_path)
    assert record is not None
    assert record.initial_em is not None
    files = [step_purpose for step_purpose in broken.trajectory_files() if step_purpose[0] == 4]
    assert files == [f for f in unbroken.trajectory_files() if f[0] == 4]
    for step, purpose in files:
        assert [len(run.read_trajectories(step, purpose)) for run in runs] == [3, 3]
    # Checkpoints and the best policy hold adapters.
    for run in runs:
        folders = [run.best_path, *run.checkpoints_path.glob("checkpoint-*")]
        assert len(folders) == 3
        for folder in folders:
            assert (folder / "adapter_config.json").is_file()
            assert not (folder / "model.safetensors").exists()
    expected, resumed = (load_file(run.best_path / "adapter_model.safetensors") for run in runs)
    assert expected.keys() == resumed.keys()
    assert all(expected[name].equal(resumed[name]) for name in expected)
    assert any(expected[name].any() for name in expected if "lora_B" in name)
    # It is evaluated where it was moved, and its base is elsewhere.
    moved = unbroken.path.rename(tmp_path / "moved")
    file = moved / "best" / "adapter_config.json"
    config = json.loads(file.read_text()) | {"base_model_name_or_path": "/nowhere"}
    file.write_text(json.dumps(config))
    # On the rewards of `killed_run`.
    result = run_module(KILLED_RUN, "nowhere", 0, "evaluate", moved)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{100 * arm(broken)['em']:.1f} % (" in result.stdout


# ---- a script, run again with resume_from_checkpoint=True


# Six steps, each saved; every second one is evaluated first, and the second one keeps a policy.
SCRIPTS_KILLS = [
    ("first step", 1),
    ("weights", 2),
    ("swap", 2),
    ("state", 4),
    ("closing", 7),
    ("report", 7),
]


def script(
    folder: Path, place: str = "nowhere", step: int = 0, *, resume: bool = False
) -> subprocess.CompletedProcess[str]:
    mode = "resume" if resume else "begin"
    return run_module("tests.engines.trl.killed_script", place, step, folder, mode)


def test_a_killed_script_that_is_run_again_ends_as_if_never_killed(tmp_path: Path) -> None:
    unbroken = tmp_path / "unbroken"
    broken = tmp_path / "broken"
    result = script(unbroken)
    assert result.returncode == 0, result.stderr
    for place, step in SCRIPTS_KILLS:
        result = script(broken, place, step, resume=broken.exists())
        assert result.returncode == -signal.SIGKILL, f"{place} {step}: {result.stderr}"
    result = script(broken, resume=True)
    assert result.returncode == 0, result.stderr
    intact, cut = (RunDir.open(folder / "checkpoints" / "cotune") for folder in (unbroken, broken))
    resumed = [row["from_step"] for row in cut.read_events() if row["kind"] == "resumed"]
    assert resumed == [1, 1, 3, 6, 6]  # the first time there was no checkpoint yet
    check_that_they_end_alike(cut, intact)
    for name in ("model.safetensors", "instruction.txt", "best.json", "chat_template.jinja"):
        assert (cut.best_path / name).read_bytes() == (intact.best_path / name).read_bytes()
    weights = [folder / "checkpoints" / "checkpoint-6" for folder in (unbroken, broken)]
    first, second = ((folder / "model.safetensors").read_bytes() for folder in weights)
    assert first == second
    assert (cut.path / "report.html").is_file()
