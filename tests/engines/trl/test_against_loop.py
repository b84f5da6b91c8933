"""TRL's loss and gradient on our trajectories are those of the reference loop."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.trl_joint import was_cut
from cotune.types import Trajectory
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from tests.engines.trl.setup import Counting
from tests.engines.trl.test_distillation import Spy, start_small

HINT = "Zanzibar: first make a plan."


class UnevenGeo(GeoEnvironment):
    """The bundled world with a reward that any policy's rollouts differ in, except some tasks'."""

    def __init__(self, train: int, flat: int) -> None:
        super().__init__(GeoOptions(train=train, validation=1, test=1))
        self._flat = flat

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        _, answer = super().score(trajectory)
        if trajectory.task in self.tasks("train")[: self._flat]:
            return 0.9, answer  # six of them have another mean in float32
        return len(trajectory.own_text) % 11 / 10, answer


class LoopSpy(Spy):
    def __init__(self) -> None:
        super().__init__()
        self.trained_prompts: list[list[int]] = []
        self.advantages: list[float] = []


def trained_on_small(
    folder: Path, hint: str, environment: UnevenGeo | None = None, **changes: Any
) -> LoopSpy:
    spy = LoopSpy()

    class Watched(PolicyUpdate):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            output = super()._generate_and_score_completions(inputs)
            rows = zip(output["prompt_ids"], output["prompt_mask"], strict=True)
            spy.advantages += output["advantages"].tolist()
            spy.trained_prompts += [ids[mask == 1].tolist() for ids, mask in rows]
            return output

    environment = environment or UnevenGeo(train=3, flat=1)
    strategy = Counting(environment.initial_instruction, hint)
    spy.run = start_small(folder, strategy, environment, trainer_class=Watched, **changes)
    spy.run.trainer.add_callback(spy)
    spy.run.trainer.train()
    return spy


ACCUMULATED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}


@pytest.mark.parametrize(("changes", "hint"), [({}, ""), (ACCUMULATED, HINT)])
def test_loss_and_gradient_are_the_loops(
    tmp_path: Path, changes: dict[str, int], hint: str
) -> None:
    spy = trained_on_small(tmp_path, hint, **changes)
    check_against_the_loop(spy, hint)


def test_equal_rewards_are_no_advantage_at_all(tmp_path: Path) -> None:
    environment = UnevenGeo(train=2, flat=1)
    spy = trained_on_small(tmp_path, "", environment, num_generations=6)
    check_against_the_loop(spy, "")
    (trajectories,) = spy.run.trajectories
    assert [a == 0 for a in spy.advantages] == [t.reward == 0.9 for t in trajectories]
    (row,) = spy.run.folder.read_metrics()
    assert row["zero_advantage_share"] == 0.5


def check_against_the_loop(spy: LoopSpy, hint: str) -> None:
    (trajectories,) = spy.run.trajectories
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-5)
    assert max(expected.abs().max().item() for _, expected in spy.pairs) > 1e-3
    for got, expected in spy.pairs:
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert any(0 in t.mask[:-1] for t in trajectories)  # with observations to leave out
    cut = sum(map(was_cut, trajectories)) / len(trajectories)
    assert spy.run.logged("completions/clipped_ratio") == pytest.approx([cut])
    assert [tuple(ids) for ids in spy.trained_prompts] == [t.prompt_ids for t in trajectories]
    tokenizer = spy.run.trainer.processing_class
    for trajectory in trajectories:
        seen = tokenizer.decode(trajectory.sampled_prompt_ids)
        trained = tokenizer.decode(trajectory.prompt_ids)
        assert ("Zanzibar" in seen) == bool(hint)
        assert "Zanzibar" not in trained
        assert trajectory.task.question in trained
