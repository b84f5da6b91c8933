"""What each of two ranks does in test_hinted_ranks: trains on hinted rollouts of both or of one.

torchrun --nproc_per_node 2 -m tests.engines.trl.hinted_ranks FOLDER
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cotune.methods.static import StaticStrategy
from cotune.types import (
    Assignment,
    Distillation,
    Progress,
    Prompt,
    Task,
    Trajectory,
)
from tests.engines.trl.setup import HINT, start
from tests.engines.trl.two_ranks import SIZES, fingerprint
from tests.policy.tiny import Letters

# Rows of three groups of two, three rows a rank; some on both ranks, then on the first alone.
HINTED_ROWS = {"both": (0, 1, 3), "first": (1, 2)}
MODES = {
    "masked": Distillation(ratio="masked_signed", low=0.3, high=3.0),
    "filtered": None,
}


class Solvable(Letters):
    """A rollout of even length is solved, and others have half of their share of "a": only successes are taught."""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        share, answer = super().score(trajectory)
        return (1.0 if len(trajectory.own_text) % 2 == 0 else share / 2), answer


class HintedRows(StaticStrategy):
    """Hints some rows of every batch."""

    def __init__(self, rows: Sequence[int], distillation: Distillation | None) -> None:
        super().__init__("abc de. ")
        self._rows, self._distillation = rows, distillation

    @property
    def distillation(self) -> Distillation:
        return self._distillation or Distillation()

    @property
    def has_teacher(self) -> bool:
        return self._distillation is None

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        plain, hinted = Prompt("abc de. "), Prompt("abc de. ", HINT)
        return [
            Assignment(
                tasks[row // group_size],
                hinted if row in self._rows else plain,
                plain,
                "i0",
                row // group_size,
                hinted if row in self._rows and self.has_teacher else None,
            )
            for row in range(len(tasks) * group_size)
        ]


def train(folder: Path, checkpoints: Path, **changes: Any) -> dict[str, Any]:
    """By hinted rows and mode: the weights after two batches and the logged ratios and cost."""
    found: dict[str, Any] = {}
    for where, rows in HINTED_ROWS.items():
        for mode, distillation in MODES.items():
            sizes = {
                **SIZES,
                "max_steps": 2,
                "output_dir": str(checkpoints / where / mode),
            } | changes
            strategy = HintedRows(rows, distillation)
            run = start(folder / where / mode, strategy, Solvable(), **sizes)
            run.trainer.train()
            logged = [
                {
                    k: v
                    for k, v in row.items()
                    if k.startswith(("p2o/", "distil/", "hinted", "zero_adv"))
                }
                for row in run.folder.read_metrics()
            ]
            found[f"{where}/{mode}"] = {
                "weights": fingerprint(run),
                "metrics": logged,
                "joint": [v for k, v in run.joint.metrics.items() if k.startswith("p2o/")],
            }
    return found


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    found = train(folder / f"rank{rank}", folder / "checkpoints")
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
