"""A frozen policy: sampled, evaluated, never moved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cotune.cli.train import train
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.run.best import instruction_rows
from cotune.run.costs import policy_rollouts
from cotune.run.run_dir import RunDir
from tests.policy.tiny import small_policy
from tests.run_files import tiny, write

# What would move any weight that is let move.
EAGER = {"learning_rate": 0.01, "engine_args": {"weight_decay": 0.5}}
GEPA = {"kind": "gepa", "budget": 24, "dev_size": 4}


def trained(folder: Path, strategy: dict[str, Any], **training: Any) -> RunDir:
    changes = {
        "policy": {"path": small_policy()},
        "strategy": strategy,
        "training": {**EAGER, **training},
    }
    path = write(folder / "run.yaml", tiny(folder / "run", changes))
    return RunDir.open(train(path, Console(quiet=True), quiet=True))


def weights(folder: str | Path) -> dict[str, torch.Tensor]:
    return load_file(Path(folder) / "model.safetensors")


def is_the_base(run: RunDir) -> bool:
    """Whether the kept weights are the policy's of before the run, bit by bit."""
    initial, best = weights(small_policy()), weights(run.best_path)
    assert initial.keys() == best.keys()
    return all(torch.equal(initial[name], best[name]) for name in initial)


def rollouts(run: RunDir) -> dict[str, int]:
    return {k: v for k, v in run.totals().rollouts.items() if v}


def no_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a loss nor a log-probability is computed from here on."""

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("a loss was computed")

    monkeypatch.setattr(PolicyUpdate, "compute_loss", unexpected)
    monkeypatch.setattr(PolicyUpdate, "_get_per_token_logps_and_entropies", unexpected)


def test_a_method_evolves_by_batches_that_move_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_forward(monkeypatch)
    inspo = tiny(tmp_path)["strategy"]
    run = trained(tmp_path, inspo, frozen=True, mini_batches=2, kl=0.1)
    assert is_the_base(run)
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    assert {row["learning_rate"] for row in run.read_metrics()} == {0.0}
    assert {row["loss"] for row in run.read_metrics()} == {0.0}
    # Three batches of four questions with two rollouts each.
    assert rollouts(run)["train"] == 24
    assert any(row["kind"] == "evolution" for row in run.read_events())
    assert len(instruction_rows(run)) > 1


def test_the_same_run_unfrozen_moves_them(tmp_path: Path) -> None:
    assert not is_the_base(trained(tmp_path, {"kind": "static"}, steps=1))


def test_gepa_on_a_frozen_policy_makes_no_training_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_forward(monkeypatch)
    run = trained(tmp_path, GEPA, frozen=True)
    assert is_the_base(run)
    spent_on = rollouts(run)
    assert spent_on.keys() == {"evolve", "evaluate"}
    assert 0 < spent_on["evolve"] <= 24
    assert policy_rollouts(spent_on) == spent_on["evolve"]
    assert run.read_metrics() == []
    kinds = [row["kind"] for row in run.read_events()]
    assert kinds.count("gepa_phase_ended") == 1
    assert "The weights are the base's." in (run.best_path / "README.md").read_text()
