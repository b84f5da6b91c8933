"""Context distillation on two gloo ranks is that of one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cotune.methods.static import StaticStrategy
from cotune.types import Assignment, Distillation, Progress, Prompt, Task, Trajectory
from tests.engines.trl.ranks import on_two_ranks
from tests.engines.trl.setup import HINT, start
from tests.engines.trl.test_two_ranks import SIZES, fingerprint
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


def train_rank(folder: Path, rank: int) -> dict[str, Any]:
    return train(folder / f"rank{rank}", folder / "checkpoints")


@pytest.mark.slow
def test_two_ranks_distil_as_one_process_does(tmp_path: Path) -> None:
    ranks = on_two_ranks(train_rank, tmp_path)
    alone = train(tmp_path / "alone", tmp_path / "own", per_device_train_batch_size=6)
    for name, expected in alone.items():
        assert ranks[0][name]["weights"] == ranks[1][name]["weights"]
        assert ranks[0][name]["weights"] == pytest.approx(expected["weights"], abs=1e-3)
        assert ranks[0][name]["joint"] == ranks[1][name]["joint"]
        for got, want in zip(ranks[0][name]["metrics"], expected["metrics"], strict=True):
            assert got == pytest.approx(want, rel=1e-3)
            assert got["distil/share" if "filtered" in name else "p2o/logprob_tokens"] > 0
    masked = [row["p2o/ratio_masked_share"] for row in alone["both/masked"]["metrics"]]
    assert 0 < sum(masked) < len(masked)
