"""A script on two gloo ranks."""

import json
from pathlib import Path

import pytest

import cotune
from tests.engines.trl.script_ranks import ended_with, train
from tests.engines.trl.script_runs import STEPS
from tests.forked import run_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_train_evaluate_and_keep_the_best_as_one_process_does(tmp_path: Path) -> None:
    run_ranks("tests.engines.trl.script_ranks", tmp_path)
    first, second = (
        json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
    )
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
