"""What each of two ranks does in test_script_ranks: trains as a script does, evaluates, keeps the best.

torchrun --nproc_per_node 2 -m tests.engines.trl.script_ranks FOLDER
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.engines.trl.script_runs import ScriptTraining, begin
from tests.policy.tiny import Letters

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 3, "per_device_eval_batch_size": 3, "save_strategy": "steps",
    "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "seed": 3,
    "report_to": ["tensorboard"],
}  # fmt: skip


def train(folder: Path, **changes: Any) -> ScriptTraining:
    given = {"environment": Letters()}
    values = RUN | changes
    training = begin(folder, "inspo+p2o", evaluates=True, trainer_arguments=given, **values)
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


def main() -> None:
    folder = Path(sys.argv[1])
    found = ended_with(train(folder))
    path = folder / f"rank{os.environ['RANK']}.json"
    path.write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
