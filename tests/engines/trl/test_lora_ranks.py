"""An adapter on two gloo ranks is that of one process."""

from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig

from cotune.engines.trl.joint_trainer import TRLBest
from tests.engines.trl.ranks import on_two_ranks
from tests.engines.trl.setup import scored, start
from tests.engines.trl.test_two_ranks import SIZES, fingerprint
from tests.policy.tiny import tiny_tokenizer

pytestmark = pytest.mark.slow


def train(folder: Path, shared: Path, **changes: Any) -> dict[str, Any]:
    """Three batches with a KL term and gradient checkpointing; `shared` is all ranks'."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    sizes = {**SIZES, "output_dir": str(shared / "checkpoints"), "beta": 0.05, **changes}
    run = start(
        folder,
        trainer_arguments={"peft_config": config},
        gradient_checkpointing=True,
        ddp_find_unused_parameters=False,
        **sizes,
    )
    run.trainer.train()
    weights, best = fingerprint(run), TRLBest(shared / "best", tiny_tokenizer())
    joint = run.joint
    joint.coordinator.on_rank_zero(lambda: best.offer(joint, scored(1.0), joint.batches))
    model: Any = run.trainer.model
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.zero_()
    run.joint.batches += 1  # or what is at hand would be taken for the best
    best.restore(run.joint)
    return {
        "weights": weights,
        "restored": fingerprint(run),
        "kl": run.logged("kl"),
        "texts": [[t.own_text for t in batch] for batch in run.trajectories],
    }


def train_rank(folder: Path, rank: int) -> dict[str, Any]:
    return train(folder / f"rank{rank}", folder)


@pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning")
def test_two_ranks_train_the_adapter_that_one_process_trains(tmp_path: Path) -> None:
    ranks = on_two_ranks(train_rank, tmp_path)
    alone = train(tmp_path / "alone", tmp_path / "own", per_device_train_batch_size=6)
    assert ranks[0] == ranks[1]
    assert ranks[0]["texts"] == alone["texts"]
    assert ranks[0]["weights"] == pytest.approx(alone["weights"], abs=1e-3)
    assert ranks[0]["kl"] == pytest.approx(alone["kl"], abs=1e-4)
    assert alone["kl"][-1] > 0
    for found in (*ranks, alone):
        assert found["restored"] == found["weights"]
