"""Context distillation in the TRL engine: the reference loop's loss and gradient, in every mode."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from cotune.types import Distillation, Limits, Trajectory
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from tests.engines.trl.setup import HintedRows, Run, start
from tests.policy.tiny import small_policy
from tests.reference_loop import policy_loss, teacher_loss

LIMITS = Limits(turns=2, turn_tokens=24, observation_tokens=60, trajectory_tokens=120)
TEMPERATURE = 1.4
GEO_HINT = "Zanzibar: first make a plan."
ACCUMULATED = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2}
MINI_BATCHES = {
    "per_device_train_batch_size": 6,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "max_steps": 2,
}


class EveryOther(GeoEnvironment):
    """The bundled world in which every other rollout is rewarded, so that every group decides."""

    def __init__(self, options: GeoOptions) -> None:
        super().__init__(options)
        self._rewards = cycle((1.0, 0.0))

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        return next(self._rewards), super().score(trajectory)[1]


class Spy(TrainerCallback):
    """Trains, and notes before the optimizer's step TRL's gradient beside the loop's, at the same weights."""

    def __init__(self, run: Run) -> None:
        self.run: Any = run
        self.outputs = run.outputs()
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.losses: list[float] = []
        run.trainer.add_callback(self)
        run.trainer.train()

    def loss(self, model: Any) -> torch.Tensor:
        args, strategy = self.run.joint.args, self.run.joint.coordinator.strategy
        batch, sizes = self.run.joint.batch.trajectories, (args.num_generations, args.epsilon)
        loss = policy_loss(model, batch, *sizes, args.temperature, strategy.distillation)
        return loss + teacher_loss(model, batch, args.temperature) if strategy.has_teacher else loss

    def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
        loss = self.loss(model)
        parameters = [p for p in model.parameters() if p.requires_grad]
        expected = torch.autograd.grad(loss, parameters)
        self.losses.append(loss.item())
        self.pairs += [(p.grad.clone(), e) for p, e in zip(parameters, expected, strict=True)]

    def check(self, least: float = 1e-3, atol: float = 1e-5, rtol: float = 1e-4) -> None:
        """The gradients are equal, and the largest of them is more than `least`."""
        assert max(expected.abs().max().item() for _, expected in self.pairs) > least
        for gradient, expected in self.pairs:
            torch.testing.assert_close(gradient, expected, atol=atol, rtol=rtol)


def start_small(folder: Path, strategy: Any, environment: GeoEnvironment, **changes: Any) -> Run:
    """A step of a small policy on 3 questions × 4 rollouts, ready to train."""
    path = small_policy()
    policy = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    values = {
        "per_device_train_batch_size": 12, "num_generations": 4, "max_steps": 1,
        "max_grad_norm": 1e9,  # no clipping: the gradient is compared, not its direction alone
        "max_completion_length": LIMITS.trajectory_tokens,
        "temperature": TEMPERATURE,
    }  # fmt: skip
    return start(folder, strategy, environment, policy, LIMITS, **values | changes)


def trained(
    folder: Path,
    distillation: Distillation | None = None,
    kind: type[GeoEnvironment] = EveryOther,
    rows: Sequence[int] | None = (0, 1, 2, 3, 5, 6, 7),
    taught: bool = False,
    **changes: Any,
) -> Spy:
    """A step of a small policy on 3 questions × 4 rollouts, at a temperature that varies their texts.

    By default all rollouts of the first question are hinted, all but one of the second, none of the third.
    """
    environment = kind(GeoOptions(train=3, validation=1, test=1))
    instruction = environment.initial_instruction
    strategy = HintedRows(rows, distillation, instruction, GEO_HINT, taught)
    return Spy(start_small(folder, strategy, environment, **changes))


MODES = {
    "original": Distillation(ratio="original"),
    "masked": Distillation(ratio="masked_signed", low=0.7, high=1.2),
    "default": Distillation(ratio="masked_signed"),
    "most masked": Distillation(ratio="masked_signed", low=1.2, high=2.0),
}


@pytest.fixture(scope="module")
def trained_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Spy]:
    """A mode gives its run, which several tests read."""

    @cache
    def run(mode: str) -> Spy:
        changes = {} if mode == "default" else ACCUMULATED
        return trained(tmp_path_factory.mktemp("run"), MODES[mode], **changes)

    return run


@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient_are_the_loops(mode: str, trained_in: Callable[[str], Spy]) -> None:
    settings, spy = MODES[mode], trained_in(mode)
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-5)
    spy.check()
    (batch,) = spy.run.trajectories
    assert any(0 in t.mask[:-1] for t in batch)  # with observations to leave out
    assert [t.reward for t in batch] == [1.0, 0.0] * 6
    (row,) = spy.run.folder.read_metrics()
    if settings.ratio != "masked_signed":
        assert not [name for name in row if name.startswith("p2o/")]
        return
    # tests/methods has the formulas of the logged ratios; the cost is what was fed.
    assert (row["p2o/ratio_masked_share"] > 0) == (mode != "default")
    assert (row["p2o/ratio_masked_share"] > 0.4) == (mode == "most masked")
    distilled = [t for t in batch if t.sampled_prompt_ids != t.prompt_ids]
    assert len(distilled) == 7
    tokens = sum(len(t.prompt_ids) + len(t.completion_ids) for t in distilled)
    assert row["p2o/logprob_tokens"] == tokens
    assert spy.run.logged("p2o/ratio_mean") == pytest.approx([row["p2o/ratio_mean"]])


def test_the_mask_is_taken_before_the_first_of_two_updates(
    tmp_path: Path, trained_in: Callable[[str], Spy]
) -> None:
    (single,) = trained_in("masked").outputs
    (double,) = trained(tmp_path, MODES["masked"], **MINI_BATCHES).outputs
    torch.testing.assert_close(single["advantages"], double["advantages"], atol=1e-6, rtol=0)
    assert "old_per_token_logps" not in single
    assert "old_per_token_logps" in double


def test_a_row_whose_every_token_is_masked_is_left_out_and_counted(tmp_path: Path) -> None:
    """All hinted failures weigh nothing; the loss is the mean over all 12 rows all the same."""
    spy = trained(tmp_path, Distillation(ratio="masked_signed", low=1e6, high=1e7))
    (output,) = spy.outputs
    batch = spy.run.trajectories[0]
    hinted = [t.sampled_prompt_ids != t.prompt_ids and t.reward == 0 for t in batch]
    assert sum(hinted) == 4
    assert not output["advantages"][torch.tensor(hinted)].any()
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-5)
    spy.check()


class FlatFirst(GeoEnvironment):
    """The first question's rollouts are rewarded alike, the others' by their length."""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        _, answer = super().score(trajectory)
        if trajectory.task == self.tasks("train")[0]:
            return 0.9, answer  # six of them have another mean in float32
        return len(trajectory.own_text) % 11 / 10, answer


def test_equal_rewards_are_no_advantage_at_all(tmp_path: Path) -> None:
    sizes = {"num_generations": 6, "per_device_train_batch_size": 18}
    rows = (*range(6), *range(7, 12))  # all of the first question, all but one of the second
    spy = trained(tmp_path, Distillation(ratio="original"), FlatFirst, rows, **sizes)
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-5)
    spy.check()
    (batch,) = spy.run.trajectories
    assert [a == 0 for a in spy.outputs[0]["advantages"]] == [t.reward == 0.9 for t in batch]
    (row,) = spy.run.folder.read_metrics()
    assert row["zero_advantage_share"] == pytest.approx(1 / 3)


# ---- a teacher


@pytest.mark.parametrize("changes", [{}, ACCUMULATED], ids=["at once", "accumulated"])
def test_loss_and_gradient_with_a_teacher_are_the_loops(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """All rollouts are under the hint and trained without it; successes have a teacher."""
    spy = trained(tmp_path, rows=None, taught=True, **changes)
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
    spy = trained(tmp_path, rows=(), taught=True)
    spy.check()
    (row,) = spy.run.folder.read_metrics()
    assert row["distil/share"] == 0
    assert "distil/gap" not in row
