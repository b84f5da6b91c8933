"""A teacher in the TRL engine: the reference loop's loss and gradient."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.methods.static import StaticStrategy
from cotune.types import (
    Assignment,
    Progress,
    Prompt,
    Task,
)
from cotune_lab.worlds.geo import GeoOptions
from tests.engines.trl.test_distillation import (
    ACCUMULATED,
    GEO_HINT,
    TEMPERATURE,
    EveryOther,
    Spy,
    start_small,
)
from tests.reference_loop import teacher_loss


class LastStage(StaticStrategy):
    """All rollouts are under the hint and trained without it; successes have a teacher."""

    def __init__(self, instruction: str) -> None:
        super().__init__(instruction)
        self._hinted = Prompt(instruction, GEO_HINT)

    @property
    def has_teacher(self) -> bool:
        return True

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        plain = super().assign(tasks, group_size, progress)
        return [replace(a, sampled=self._hinted, teacher=self._hinted) for a in plain]


class TaughtSpy(Spy):
    def loss(self, model: Any) -> torch.Tensor:
        joint = self.run.joint
        batch = joint.batch.trajectories
        return super().loss(model) + teacher_loss(model, batch, joint.args.temperature)


def prepared(folder: Path, strategy: Any = LastStage, **changes: Any) -> Any:
    environment = EveryOther(GeoOptions(train=3, validation=1, test=1))
    values = {"temperature": TEMPERATURE} | changes
    return start_small(folder, strategy(environment.initial_instruction), environment, **values)


def trained(folder: Path, strategy: Any = LastStage, **changes: Any) -> Spy:
    spy = TaughtSpy()
    spy.run = prepared(folder, strategy, **changes)
    spy.run.trainer.add_callback(spy)
    spy.run.trainer.train()
    return spy


@pytest.mark.parametrize("changes", [{}, ACCUMULATED], ids=["at once", "accumulated"])
def test_loss_and_gradient_are_the_loops(changes: dict[str, Any], tmp_path: Path) -> None:
    spy = trained(tmp_path, **changes)
    batch = spy.run.joint.batch.trajectories
    assert {bool(t.teacher_prompt_ids) for t in batch} == {True, False}
    assert all(bool(t.teacher_prompt_ids) == (t.reward >= 0.5) for t in batch)
    assert all(t.prompt_ids != t.sampled_prompt_ids for t in batch)
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-4)
    spy.check(atol=2e-5, rtol=1e-3)
    for row in spy.run.folder.read_metrics():
        assert row["distil/share"] == pytest.approx(6 / 12)
        assert row["distil/gap"] != 0
        assert row["distil/tokens"] > 0


def test_without_a_teachers_rollouts_it_is_grpo(tmp_path: Path) -> None:
    class Untaught(LastStage):
        def assign(self, *arguments: Any) -> list[Assignment]:
            return [replace(a, teacher=None) for a in super().assign(*arguments)]

    spy = trained(tmp_path, Untaught)
    spy.check()
    (row,) = spy.run.folder.read_metrics()
    assert row["distil/share"] == 0
    assert "distil/gap" not in row
