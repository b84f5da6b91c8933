"""A teacher in the TRL engine: the reference loop's loss and gradient, and an exact resume."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOTrainer

from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.teacher import FILE, Teacher
from cotune.errors import ConfigError
from cotune.methods.last_stage import successes_teach
from cotune.methods.static import StaticStrategy
from cotune.protocols import Rollout
from cotune.types import (
    AnyDistillation,
    Assignment,
    FilteredDistillation,
    KLDistillation,
    Progress,
    Prompt,
    Task,
    Trajectory,
)
from cotune.worlds.geo import GeoOptions
from tests.engines.trl.setup import start
from tests.engines.trl.test_distillation import (
    ACCUMULATED,
    GEO_HINT,
    LIMITS,
    MINI_BATCHES,
    TEMPERATURE,
    EveryOther,
)
from tests.policy.tiny import small_policy
from tests.reference_loop import policy_loss, teacher_loss


class Taught(StaticStrategy):
    """A teacher for all rollouts of the first question, all but one of the second, none of the third.

    Where it filters, it retries these rollouts under the hint, and keeps every other one.
    """

    def __init__(self, instruction: str, distillation: AnyDistillation) -> None:
        super().__init__(instruction)
        self._hinted, self._distillation = Prompt(instruction, GEO_HINT), distillation

    @property
    def distillation(self) -> AnyDistillation:
        return self._distillation

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        plain = super().assign(tasks, group_size, progress)
        if isinstance(self._distillation, FilteredDistillation):
            return plain
        return [replace(a, teacher=self._hinted) if taught(i) else a for i, a in enumerate(plain)]

    def retry(
        self,
        trajectories: Sequence[Trajectory],
        group_size: int,
        progress: Progress,
        rollout: Rollout,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        batch = list(trajectories)
        if isinstance(self._distillation, FilteredDistillation):
            asked = [replace(t.assignment, sampled=self._hinted) for t in batch[:4]]
            for row, found in enumerate(rollout(asked, purpose="train")):
                seen = found.sampled_prompt_ids if row % 2 else ()
                batch[row] = replace(found, reward=0.0, teacher_prompt_ids=seen)
        return batch, {}


class LastStage(Taught):
    """All rollouts are under the hint and trained without it; successes have a teacher."""

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        plain = super().assign(tasks, group_size, progress)
        return [replace(a, sampled=self._hinted, teacher=self._hinted) for a in plain]

    def retry(
        self,
        trajectories: Sequence[Trajectory],
        group_size: int,
        progress: Progress,
        rollout: Rollout,
    ) -> tuple[list[Trajectory], dict[str, float]]:
        return successes_teach(trajectories, 0.5), {}


def taught(row: int) -> bool:
    return row < 4 or 4 < row < 8


class Spy(TrainerCallback):
    """Before the optimizer's step: TRL's gradient beside the loop's, at the same weights."""

    def __init__(self) -> None:
        self.run: Any = None
        self.weights: list[dict[str, torch.Tensor]] = []
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.losses: list[float] = []

    def teacher(self, model: Any, settings: AnyDistillation) -> Any:
        """The teacher of this step, worked out from the weights at each step so far."""
        kind = getattr(settings, "teacher", "live")
        if kind == "live":
            return model
        read = AutoModelForCausalLM.from_pretrained(small_policy())
        if kind == "ema":
            keep = settings.ema_decay  # type: ignore[union-attr]
            average = dict(self.weights[0])
            for weights in self.weights[1:]:
                average = {k: keep * v + (1 - keep) * weights[k] for k, v in average.items()}
            read.load_state_dict(average)
        return read

    def on_pre_optimizer_step(self, *args: Any, model: Any, **kwargs: Any) -> None:
        joint = self.run.joint
        settings = joint.coordinator.strategy.distillation
        batch, temperature = joint.last_rollouts, joint.args.temperature
        self.weights.append({k: v.clone() for k, v in model.state_dict().items()})
        loss = policy_loss(
            model, batch, joint.args.num_generations, joint.args.epsilon, temperature, settings
        )
        loss = loss + teacher_loss(
            model, self.teacher(model, settings), batch, settings, temperature
        )
        parameters = [p for p in model.parameters() if p.requires_grad]
        expected = torch.autograd.grad(loss, parameters)
        self.losses.append(loss.item())
        self.pairs += [(p.grad.clone(), e) for p, e in zip(parameters, expected, strict=True)]


def prepared(folder: Path, distillation: AnyDistillation, **changes: Any) -> Any:
    path = small_policy()
    environment = EveryOther(GeoOptions(train=3, validation=1, test=1))
    values = {"per_device_train_batch_size": 12, "max_steps": 1, "temperature": TEMPERATURE}
    trainer_class = changes.pop("trainer_class", JointTrainer)
    strategy = changes.pop("strategy", Taught)
    return start(
        folder,
        strategy(environment.initial_instruction, distillation),
        environment,
        (AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)),
        LIMITS,
        trainer_class,
        num_generations=4,
        max_grad_norm=1e9,  # no clipping: the gradient is compared, not its direction alone
        max_completion_length=LIMITS.trajectory_tokens,
        remembers=True,
        **(values | changes),
    )


def trained(folder: Path, distillation: AnyDistillation, **changes: Any) -> Spy:
    spy = Spy()
    spy.run = prepared(folder, distillation, **changes)
    spy.run.trainer.add_callback(spy)
    spy.run.trainer.train()
    return spy


KL = {"kind": "kl", "weight": 0.5}
TWO_STEPS = {"max_steps": 2, "learning_rate": 1e-2}
MODES: dict[str, tuple[AnyDistillation, dict[str, Any]]] = {
    "no gate": (KLDistillation(**KL, gate="none"), ACCUMULATED),
    "sigmoid": (KLDistillation(**KL), ACCUMULATED),
    "top k": (KLDistillation(**KL, tokens="top_k", top_k=8), {}),
    "base": (KLDistillation(**KL, teacher="base", gate="none"), TWO_STEPS),
    "ema": (KLDistillation(**KL, teacher="ema", ema_decay=0.6, tokens="top_k"), TWO_STEPS),
    "filtered": (FilteredDistillation(kind="filtered", top_k=8), ACCUMULATED),
    "filtered, sampled": (FilteredDistillation(kind="filtered", tokens="sampled"), {}),
}


@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradient_are_the_loops(mode: str, tmp_path: Path) -> None:
    settings, changes = MODES[mode]
    spy = trained(tmp_path, settings, **changes)
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-4)
    assert max(expected.abs().max().item() for _, expected in spy.pairs) > 1e-3
    for got, expected in spy.pairs:
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-3)
    for row in spy.run.folder.read_metrics():
        filtered = mode.startswith("filtered")
        assert row["distil/share"] == pytest.approx((2 if filtered else 7) / 12)
        assert 0 < row["distil/gate"] <= 1
        assert (row["distil/gate"] == 1) == (mode not in ("sigmoid", "top k", "ema"))
        assert row["distil/gap"] != 0
        assert row["distil/tokens"] > 0


def test_rollouts_that_have_advantages_can_teach_too(tmp_path: Path) -> None:
    settings = FilteredDistillation(kind="filtered", top_k=8)
    spy = trained(tmp_path, settings, strategy=LastStage, **ACCUMULATED)
    batch = spy.run.joint.last_rollouts
    assert {bool(t.teacher_prompt_ids) for t in batch} == {True, False}
    assert all(bool(t.teacher_prompt_ids) == (t.reward >= 0.5) for t in batch)
    assert all(t.prompt_ids != t.sampled_prompt_ids for t in batch)
    assert spy.run.logged("loss") == pytest.approx(spy.losses, abs=1e-4)
    for got, expected in spy.pairs:
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-3)


def test_a_hint_is_read_by_the_teacher_alone(tmp_path: Path) -> None:
    spy = trained(tmp_path, KLDistillation(**KL))
    decode, batch = spy.run.joint.codec.decode, spy.run.joint.last_rollouts
    assert ["Zanzibar" in decode(t.teacher_prompt_ids) for t in batch] == list(
        map(taught, range(12))
    )
    assert not any("Zanzibar" in decode(t.prompt_ids) for t in batch)
    assert all(t.sampled_prompt_ids == t.prompt_ids for t in batch)


def test_without_a_teachers_rollouts_it_is_grpo(tmp_path: Path) -> None:
    class Untaught(Taught):
        def assign(
            self, tasks: Sequence[Task], group_size: int, progress: Progress
        ) -> list[Assignment]:
            found = super().assign(tasks, group_size, progress)
            return [replace(a, teacher=None) for a in found]

    spy = Spy()
    spy.run = prepared(tmp_path, KLDistillation(**KL))
    strategy = spy.run.joint.coordinator.strategy
    strategy.__class__ = Untaught
    spy.run.trainer.add_callback(spy)
    spy.run.trainer.train()
    for got, expected in spy.pairs:
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    (row,) = spy.run.folder.read_metrics()
    assert row["distil/share"] == 0
    assert "distil/gap" not in row


def final_weights(run: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in run.trainer.model.state_dict().items()}


@pytest.mark.parametrize("teacher", ["base", "ema"])
def test_a_resumed_teacher_is_that_of_the_unbroken_run(teacher: Any, tmp_path: Path) -> None:
    settings = KLDistillation(**KL, teacher=teacher, ema_decay=0.6, gate="none")
    common = {**MINI_BATCHES, "max_steps": 6, "learning_rate": 1e-2}
    saves = {**common, "save_strategy": "steps", "save_steps": 2}
    unbroken = trained(tmp_path / "unbroken", settings, **saves).run
    first = prepared(tmp_path / "broken", settings, **saves)
    checkpoints = tmp_path / "broken" / "checkpoints"

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 4

    first.trainer.add_callback(Stop())
    first.trainer.train()
    assert (checkpoints / "checkpoint-4" / FILE).exists() == (teacher == "ema")
    second = prepared(tmp_path / "broken", settings, resume=True, **saves)
    second.trainer.train(resume_from_checkpoint=str(checkpoints / "checkpoint-4"))
    ours, theirs = final_weights(second), final_weights(unbroken)
    assert all(torch.equal(ours[name], weight) for name, weight in theirs.items())


def test_an_average_of_bfloat16_weights_follows_small_steps() -> None:
    policy = AutoModelForCausalLM.from_pretrained(small_policy(), dtype=torch.bfloat16)
    teacher = Teacher(KLDistillation(**KL, teacher="ema", ema_decay=0.99), policy)
    weight = next(policy.parameters())
    before = weight.detach().float().clone()
    with torch.no_grad():
        weight.mul_(1.01)
    teacher.follow(policy)
    with teacher.reading(policy) as copy:
        moved = next(copy.parameters()).detach() - before
    torch.testing.assert_close(moved, 0.01 * (weight.detach().float() - before))


def test_an_average_of_an_adapter_is_the_adapters_alone(tmp_path: Path) -> None:
    def policy() -> Any:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(small_policy())
        return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))

    settings = KLDistillation(**KL, teacher="ema", ema_decay=0.5)
    live = policy()
    teacher = Teacher(settings, live)
    adapters = {name: w for name, w in live.named_parameters() if w.requires_grad}
    with torch.no_grad():
        for weight in adapters.values():
            weight += 2.0
    teacher.follow(live)
    teacher.save(tmp_path)
    saved = load_file(tmp_path / FILE)
    assert saved.keys() == adapters.keys()
    again = Teacher(settings, policy())
    again.load(tmp_path)
    with again.reading(live) as copy:
        averages = dict(copy.named_parameters())
    for name, weight in adapters.items():
        torch.testing.assert_close(averages[name], weight - 1.0)


def test_a_checkpoint_without_the_average_is_refused(tmp_path: Path) -> None:
    run = prepared(tmp_path, KLDistillation(**KL, teacher="ema"))
    with pytest.raises(ConfigError, match=f"has no {FILE}, which distillation.teacher 'ema' needs"):
        run.trainer.teacher.load(tmp_path)


def test_a_plain_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no teacher, which distillation kind: kl needs"):
        prepared(tmp_path, KLDistillation(**KL), trainer_class=GRPOTrainer)
