"""An adapter on two gloo ranks is that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.trl.lora_ranks import train

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")
def test_two_ranks_train_the_adapter_that_one_process_trains(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = ["--nproc_per_node", "2", "-m", "tests.engines.trl.lora_ranks", str(tmp_path)]
    done = subprocess.run(
        [*launcher, *script],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    alone = train(tmp_path / "alone", tmp_path / "own", per_device_train_batch_size=6)
    assert ranks[0] == ranks[1]
    assert ranks[0]["texts"] == alone["texts"]
    assert ranks[0]["weights"] == pytest.approx(alone["weights"], abs=1e-3)
    assert ranks[0]["kl"] == pytest.approx(alone["kl"], abs=1e-4)
    assert alone["kl"][-1] > 0
    for found in (*ranks, alone):
        assert found["restored"] == found["weights"]
