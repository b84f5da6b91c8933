"""What each of two ranks does in test_lora_ranks: trains an adapter and brings the best one back.

torchrun --nproc_per_node 2 -m tests.engines.trl.lora_ranks FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig

from cotune.engines.trl.joint_trainer import TRLBest
from tests.engines.trl.setup import scored, start
from tests.engines.trl.two_ranks import SIZES, fingerprint
from tests.policy.tiny import tiny_tokenizer


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


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    found = train(folder / f"rank{rank}", folder)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
