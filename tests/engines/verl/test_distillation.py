"""P²O on veRL: sampled under hints, trained without them."""

from pathlib import Path

import pytest

from tests.engines.verl.runs import GEO, cotune, events, rows, run_file

pytestmark = pytest.mark.verl

HINTS = {"hard_set_min_count": 4, "dev_size": 6, "budget": 80, "beam": 2}
BOUNDS = {"low": 0.5, "high": 2.0}  # so narrow that some tokens are out


def test_the_trained_prompt_has_no_hint(tmp_path: Path) -> None:
    mask = {"ratio": "masked_signed", **BOUNDS}
    strategy = {"kind": "p2o", "hints": HINTS, "distillation": mask}
    dump = tmp_path / "trained"
    path = run_file(
        tmp_path,
        GEO | {"environment": {"kind": "geo", "train": 16, "validation": 8, "test": 8}},
        strategy=strategy,
        steps=3,
        engine_args={"trainer.rollout_data_dir": str(dump)},
    )
    cotune("train", path, fresh=True)
    run = tmp_path / "run"

    hints = [row["text"] for row in events(run, "hint_accepted")]
    sampled = rows(run / "trajectories" / "train-000003.jsonl")
    hinted = [row for row in sampled if row["sampled"]["hint"]]
    assert hints
    assert hinted

    # What veRL itself says that it has trained on.
    trained = rows(dump / "3.jsonl")
    assert len(trained) == len(sampled)
    for row in trained:
        assert not any(hint.strip() in row["input"] for hint in hints)
    # With the tokens that were sampled under the hint, and their rewards.
    assert sorted(row["score"] for row in trained) == sorted(row["reward"] for row in sampled)

    metrics = rows(run / "metrics.jsonl")
    assert metrics[2]["hinted_share"] > 0
    # Tokens that are left out since their context ratio is out of bounds: none without hints.
    assert metrics[0]["p2o/ratio_masked_share"] == 0
    assert 0 < metrics[2]["p2o/ratio_masked_share"] < 1
