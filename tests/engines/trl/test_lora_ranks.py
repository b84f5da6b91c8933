"""An adapter on two gloo ranks is that of one process."""

import json
from pathlib import Path

import pytest

from tests.engines.trl.lora_ranks import train
from tests.forked import run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")
def test_two_ranks_train_the_adapter_that_one_process_trains(tmp_path: Path) -> None:
    run_ranks("tests.engines.trl.lora_ranks", tmp_path)
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    alone = train(tmp_path / "alone", tmp_path / "own", per_device_train_batch_size=6)
    assert ranks[0] == ranks[1]
    assert ranks[0]["texts"] == alone["texts"]
    assert ranks[0]["weights"] == pytest.approx(alone["weights"], abs=1e-3)
    assert ranks[0]["kl"] == pytest.approx(alone["kl"], abs=1e-4)
    assert alone["kl"][-1] > 0
    for found in (*ranks, alone):
        assert found["restored"] == found["weights"]
