"""A method of the library on two gloo ranks."""

import json
from pathlib import Path

import pytest

import cotune
from tests.engines.trl.library_ranks import ended_with, train
from tests.engines.trl.library_runs import STEPS
from tests.forked import run_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_train_evaluate_and_keep_the_best_as_one_process_does(tmp_path: Path) -> None:
    run_ranks("tests.engines.trl.library_ranks", tmp_path)
    first, second = (
        json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)
    )
    assert first == second
    alone = ended_with(
        train(tmp_path / "alone", per_device_train_batch_size=6, per_device_eval_batch_size=6)
    )
    assert first["best"] == alone["best"] < STEPS
    assert first["prompt"] == alone["prompt"]
    assert first["scores"] == pytest.approx(alone["scores"], abs=1e-3)
    assert first["weights"] == pytest.approx(alone["weights"], rel=1e-3)
    assert first["again"] == pytest.approx(max(first["scores"]))

    folder = tmp_path / "checkpoints" / "cotune"
    events = cotune.open_run(folder).read_events()
    # The trainer's, its last one again, and at the end the best instruction, a contender, the initial one.
    assert [e["n"] for e in events if e["kind"] == "evaluated"] == [2] * (STEPS + 1 + 3)
    record = cotune.open_run(folder)
    assert record.totals().rollouts["evaluate"] == 2 * (STEPS + 1 + 3)
