"""A script on two gloo ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

import cotune
from tests.engines.trl.ranks import on_two_ranks
from tests.engines.trl.script_runs import STEPS, ScriptTraining, begin
from tests.policy.tiny import Letters

pytestmark = pytest.mark.slow

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 3, "per_device_eval_batch_size": 3, "save_strategy": "steps",
    "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "seed": 3,
    "report_to": ["tensorboard"],
}  # fmt: skip


def train(folder: Path, **changes: Any) -> ScriptTraining:
    given = {"environment": Letters()}
    values = RUN | changes
    training = begin(folder, "inspo", evaluates=True, trainer_arguments=given, **values)
    training.trainer.train()
    return training


def ended_with(training: ScriptTraining) -> dict[str, Any]:
    model = training.trainer.model
    assert isinstance(model, torch.nn.Module)
    history = training.trainer.state.log_history
    outcome = training.trainer.outcome
    assert outcome is not None
    return {
        "weights": [float(p.detach().double().abs().sum()) for p in model.parameters()],
        "best": outcome.kept.step,
        "em": outcome.kept.em,
        "prompt": training.trainer.best_instruction,
        "scores": [row["eval_reward"] for row in history if "eval_reward" in row],
        "again": training.trainer.evaluate()["eval_reward"],
    }


def train_rank(folder: Path, rank: int) -> dict[str, Any]:
    return ended_with(train(folder))


def test_two_ranks_train_evaluate_and_keep_the_best_as_one_process_does(tmp_path: Path) -> None:
    first, second = on_two_ranks(train_rank, tmp_path)
    assert first == second
    alone = ended_with(
        train(tmp_path / "alone", per_device_train_batch_size=6, per_device_eval_batch_size=6)
    )
    assert first["best"] == alone["best"] < STEPS  # or the test shows nothing
    assert first["prompt"] == alone["prompt"]
    assert first["scores"] == pytest.approx(alone["scores"], abs=1e-3)
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-3)
    assert first["again"] == pytest.approx(first["em"])
    assert first["em"] >= max(first["scores"]) - 1e-6

    folder = tmp_path / "checkpoints" / "cotune"
    events = [e for e in cotune.open_run(folder).read_events() if e["kind"] == "evaluated"]
    # The trainer's, and those that close the run.
    assert len([e for e in events if e["step"] <= STEPS]) == STEPS
    assert {e["n"] for e in events} == {2}
    rollouts = cotune.open_run(folder).totals().rollouts
    assert rollouts["evaluate"] == 2 * len(events)
