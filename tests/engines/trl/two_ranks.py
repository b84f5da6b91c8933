"""What each of two ranks does in test_two_ranks; writes what it saw to FOLDER/rank{N}.json.

torchrun --nproc_per_node 2 -m tests.engines.trl.two_ranks FOLDER train|fail|uneven
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.policy.policy_files import policy_path
from cotune.protocols import Recorder
from cotune.types import Action, Metrics, Progress, Response, Trajectory
from tests.engines.trl.setup import Counting, Run, start
from tests.engines.trl.test_policy_update import gradients
from tests.policy.tiny import Letters

# Three groups of two rollouts, three rollouts a rank: the second group is split.
SIZES = {"per_device_train_batch_size": 3, "num_generations": 2, "max_steps": 3}
SAVING = {"save_strategy": "steps", "save_steps": 2}


class BoomOnRankOne(Letters):
    """Fails while it answers the second batch's rollouts on rank 1."""

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        if dist.get_rank() == 1 and len(self.seen) > 3 * 3:
            raise ValueError("boom")
        return super().respond(actions)


class BrokenAtTwo(Counting):
    """A strategy that fails at its second batch."""

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        if progress.step == 2:
            raise KeyError("lost")
        return super().observe(trajectories, progress, record)


def seen(trajectory: Trajectory) -> dict[str, Any]:
    """A rollout as JSON."""
    return {
        "task": trajectory.task.id,
        "group": trajectory.assignment.group,
        "instruction": trajectory.assignment.instruction_id,
        "prompt": trajectory.assignment.sampled.instruction,
        "ids": list(trajectory.completion_ids),
        "reward": trajectory.reward,
    }


def train(folder: Path, rank: int) -> dict[str, Any]:
    """Trains three batches, evaluates, then trains the third once more from the checkpoint."""
    own = folder / f"rank{rank}"
    shared = {"output_dir": str(folder / "checkpoints")}
    run = start(own, **SIZES, **SAVING, **shared)
    rows: list[list[str]] = []
    rollout = run.joint.rollout_func

    def noted(prompts: Any, trainer: Any) -> Any:
        rows.append(prompts)
        return rollout(prompts, trainer)

    run.trainer.rollout_func = noted
    run.trainer.train()
    weights = fingerprint(run)
    tasks = run.joint.parts.environment.tasks("validation")
    scores = [t.reward for t in run.joint.coordinator.evaluate(tasks)]
    rollouts = dict(run.folder.totals().rollouts) if rank == 0 else None
    again = start(own, resume=True, **SIZES, **SAVING, **shared)
    again.trainer.train(resume_from_checkpoint=str(folder / "checkpoints" / "checkpoint-2"))
    return {
        "world_size": dist.get_world_size(),
        "comm_size": run.joint.coordinator.comm.size,
        "rows": rows[:3],
        "batches": [[seen(t) for t in batch] for batch in run.trajectories],
        "weights": weights,
        "total": run.strategy.total,
        "scores": scores,
        "rollouts": rollouts,
        "metrics": [row["step"] for row in again.folder.read_metrics()],
        "resumed_batches": [[seen(t) for t in batch] for batch in again.trajectories],
        "resumed_weights": fingerprint(again),
    }


def fingerprint(run: Run) -> list[float]:
    """The policy's weights, in a number a tensor."""
    model = run.trainer.model
    assert isinstance(model, torch.nn.Module)
    return [p.detach().double().sum().item() for p in model.parameters()]


def fail(folder: Path, rank: int) -> None:
    """A strategy's failure, which is caught here, then an environment's, which ends the ranks."""
    changes = {**SIZES, "output_dir": str(folder / "checkpoints")}
    try:
        start(folder / f"s{rank}", BrokenAtTwo(), **changes).trainer.train()
    except Exception as error:  # noqa: BLE001 - it is what the test looks at
        (folder / f"strategy{rank}.txt").write_text(f"{type(error).__name__}: {error}")
    try:
        start(folder / f"e{rank}", environment=BoomOnRankOne(), **changes).trainer.train()
    except Exception as error:
        (folder / f"environment{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        raise


# Rows with an advantage, of three a rank: all on rank 0 and one on rank 1; none and two.
UNEVEN = {"left": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], "right": [0.0, 0.0, 1.0, 1.0, 0.0, 1.0]}


def uneven(folder: Path, rank: int) -> dict[str, Any]:
    """Gradients of batches whose rows with an advantage lie mostly, or all, on one rank."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    found: dict[str, Any] = {}
    for name, rewards in UNEVEN.items():
        for loss_type in ("grpo", "dapo"):
            own = folder / f"{name}-{loss_type}-{rank}"
            kept = gradients(
                PolicyUpdate,
                tokenizer,
                own,
                rewards,
                loss_type=loss_type,
                gradient_accumulation_steps=1,
            )
            found[f"{name}-{loss_type}"] = {key: g.tolist() for key, g in kept.items()}
    return found


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    if mode == "fail":
        fail(folder, rank)
    else:
        work = {"train": train, "uneven": uneven}[mode]
        (folder / f"rank{rank}.json").write_text(json.dumps(work(folder, rank)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
