"""What each of two ranks does in test_library_ranks: trains by the library, evaluates, keeps the best.

torchrun --nproc_per_node 2 -m tests.engines.trl.library_ranks FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.trl.library_runs import LibraryTraining, begin, method_of
from tests.policy.tiny import Letters

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 3,
    "per_device_eval_batch_size": 3,
    "save_strategy": "steps",
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_reward",
    "report_to": ["tensorboard"],
}


def train(folder: Path, **changes: Any) -> LibraryTraining:
    method = method_of("inspo+p2o", environment=Letters(), seed=3)
    training = begin(folder, "inspo+p2o", method=method, evaluates=True, **(RUN | changes))
    training.trainer.train()
    return training


def ended_with(training: LibraryTraining) -> dict[str, Any]:
    model = training.trainer.model
    assert isinstance(model, torch.nn.Module)
    history = training.trainer.state.log_history
    return {
        "weights": [float(p.detach().double().abs().sum()) for p in model.parameters()],
        "best": training.trainer.state.best_global_step,
        "prompt": training.strategy.best_prompt().instruction,
        "scores": [row["eval_reward"] for row in history if "eval_reward" in row],
        "again": training.trainer.evaluate()["eval_reward"],
    }


def main() -> None:
    folder = Path(sys.argv[1])
    found = ended_with(train(folder))
    path = folder / f"rank{os.environ['RANK']}.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
