"""Groups without variance are replaced while TRL trains: what is paid, and what a resume does."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import parse_config
from cotune.engines.trl.grpo import RolloutBudget
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.types import Progress, Trajectory
from tests.engines.trl.setup import Run, start
from tests.policy.tiny import Letters
from tests.run_files import tiny

STEPS: dict[str, Any] = {
    "trainer_class": JointTrainer,
    "max_steps": 4,
    "save_steps": 2,
    "save_strategy": "steps",
}
BATCH = 2 * 3


class HalfFlat(Letters):
    """Every other question earns the same, whatever is written."""

    def __init__(self) -> None:
        super().__init__(12)

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        reward, answer = super().score(trajectory)
        return 0.0 if int(trajectory.task.id.removeprefix("train")) % 2 else reward, answer


def resampling(folder: Path, resume: bool = False, rounds: int = 2) -> Run:
    return start(folder, environment=HalfFlat(), resume=resume, resample_rounds=rounds, **STEPS)


def seen(run: Run) -> list[list[Any]]:
    return [[(t.task.id, t.completion_ids, t.reward) for t in b] for b in run.trajectories]


def test_a_resumed_run_draws_the_same_questions(tmp_path: Path) -> None:
    unbroken, killed = resampling(tmp_path / "unbroken"), resampling(tmp_path / "killed")
    unbroken.trainer.train()
    assert sum(row["resample/rounds"] for row in unbroken.folder.read_metrics()) > 2
    evolve = killed.joint.coordinator.evolve

    def until_three(progress: Progress) -> Any:
        if progress.step == 4:
            raise KeyboardInterrupt
        return evolve(progress)

    killed.joint.coordinator.evolve = until_three  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        killed.trainer.train()
    killed.ledger.close()
    again = resampling(tmp_path / "killed", resume=True)
    again.trainer.train(str(tmp_path / "killed" / "checkpoints" / "checkpoint-2"))
    assert seen(again) == seen(unbroken)[2:]
    assert again.strategy.state_dict() == unbroken.strategy.state_dict()
    assert again.ledger.totals().rollouts == unbroken.ledger.totals().rollouts


def test_rounds_are_paid_from_the_budget_and_never_exceed_it(tmp_path: Path) -> None:
    budget = 4 * BATCH - 1
    config = parse_config(
        tiny(tmp_path / "out", {"training": {"rollout_budget": budget}}), "the test"
    )
    run = resampling(tmp_path, rounds=9)
    run.trainer.add_callback(RolloutBudget(run.joint, run.ledger, config.training.rollout_budget))
    run.trainer.train()
    rows = run.folder.read_metrics()
    spent = run.ledger.totals().rollouts["train"]
    assert budget - BATCH < spent <= budget
    assert spent > BATCH * len(rows)  # rounds were among them
    assert 0 < len(rows) < 4  # and took the place of steps
