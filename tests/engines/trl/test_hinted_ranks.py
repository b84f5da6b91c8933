"""Context distillation on two gloo ranks is that of one process."""

import json
from pathlib import Path

import pytest

from tests.engines.trl.hinted_ranks import train
from tests.forked import run_ranks

pytestmark = pytest.mark.slow


def test_two_ranks_distil_as_one_process_does(tmp_path: Path) -> None:
    run_ranks("tests.engines.trl.hinted_ranks", tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    alone = train(tmp_path / "alone", tmp_path / "own", per_device_train_batch_size=6)
    for name, expected in alone.items():
        assert ranks[0][name]["weights"] == ranks[1][name]["weights"]
        assert ranks[0][name]["weights"] == pytest.approx(expected["weights"], abs=1e-3)
        assert ranks[0][name]["joint"] == ranks[1][name]["joint"]
        for got, want in zip(ranks[0][name]["metrics"], expected["metrics"], strict=True):
            if name.endswith("/filtered"):
                assert got["distil/share"] > 0
                assert got == pytest.approx(want, rel=1e-3)
                continue
            assert got == pytest.approx(want, rel=1e-3)
            assert got["p2o/logprob_tokens"] > 0
    masked = [row["p2o/ratio_masked_share"] for row in alone["both/masked"]["metrics"]]
    assert 0 < sum(masked) < len(masked)
