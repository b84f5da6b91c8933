"""The last stage: a run's last batches move the best instruction's gain into the weights.

The policy under the best instruction is the teacher of the policy under the initial one, in every group.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cotune.methods.method import RunShape
from cotune.protocols import Recorder, Strategy
from cotune.types import (
    Assignment,
    Distillation,
    Instruction,
    Progress,
    Prompt,
    Task,
)


@dataclass(frozen=True, kw_only=True)
class TrainedPromptOptions:
    """What rollouts under evolved instructions are trained on.

    Attributes:
        target: the instruction that the gradient is taken on: "sampled" is the papers'; "initial"
            moves the instructions' gain into the weights.
        distillation: how rollouts are weighted with target "initial"; null is the signed mask.
        distil_steps: the run's last batches, which distil the best instruction into the weights: they are
            sampled under it, and the policy under the initial one learns the distribution of successes.
            Nothing evolves in them. 0 turns the stage off.
    """

    target: Literal["sampled", "initial"] = "sampled"
    distillation: Distillation | None = None
    distil_steps: int = 0

    def __post_init__(self) -> None:
        if self.distil_steps < 0:
            raise ValueError(f"distil_steps is {self.distil_steps}; expected 0 or more")
        if self.distil_steps and self.target != "sampled":
            raise ValueError(
                f"distil_steps is {self.distil_steps}, but target is {self.target!r}, which moves the gain into "
                "the weights in every batch; expected target 'sampled', or distil_steps 0"
            )
        if self.target == "sampled" and self.weighting != Distillation():
            raise ValueError(
                "distillation is set, but target is 'sampled', so nothing is distilled; expected target "
                "'initial', or no distillation"
            )

    @property
    def weighting(self) -> Distillation:
        """Return how rollouts that are trained on another instruction are weighted.

        Without a mask nothing bounds how far failures under one instruction are pushed down under another
        (lab/results/ladder.md, "Into the weights").
        """
        ratio = "original" if self.target == "sampled" else "masked_signed"
        return self.distillation or Distillation(ratio=ratio)

    @property
    def checks_uplift(self) -> bool:
        """Return whether the gain may move into the weights (`Strategy.checks_uplift`)."""
        return self.target == "initial" or self.distil_steps > 0


class LastStage(Strategy):
    """Base class of strategies that choose an instruction and whose run may end with a last stage.

    Args:
        options: whether there is one, and what it trains on.
    """

    def __init__(self, options: TrainedPromptOptions) -> None:
        self._training, self._stage_steps = options, options.distil_steps
        self._distilling = False  # whether the batch is one of the stage
        self._settled: str | None = None  # the best instruction on validation, at a run's end

    @abstractmethod
    def best(self) -> Instruction:
        """Return the best instruction so far; after `settle`, the one named there."""

    def settle(self, instruction_id: str) -> None:
        self._settled = instruction_id

    def best_prompt(self) -> Prompt:
        return Prompt(self.best().text)

    def best_instruction_id(self) -> str:
        return self.best().id

    @property
    def distillation(self) -> Distillation:
        return self._training.weighting

    @property
    def has_teacher(self) -> bool:
        return self._stage_steps > 0

    @property
    def checks_uplift(self) -> bool:
        return self._training.checks_uplift

    @property
    def keeps_last(self) -> bool:
        return self._stage_steps > 0  # a policy from before the stage is not finished

    def _distils(self, progress: Progress, batch: int) -> bool:
        """Return whether the batch of a step, of so many rollouts, is one of the run's last `steps`."""
        left = progress.total_steps - progress.step + 1
        if progress.rollouts_left is not None and batch:
            left = min(left, progress.rollouts_left // batch)
        return self._stage_steps > 0 and left <= self._stage_steps

    def _notice_if_idle(
        self, progress: Progress, batch: int, best: Instruction, record: Recorder
    ) -> None:
        """Record a notice before the stage's first batch if its teacher would read the same prompt."""
        left = progress.rollouts_left
        before = replace(
            progress, step=progress.step - 1, rollouts_left=None if left is None else left + batch
        )
        if best.parent is None and not self._distils(before, batch):
            record(
                "notice",
                text=f"the last {self._stage_steps} batches have nothing to distil: no instruction is better "
                "than the initial one",
            )


def check_last_stage(steps: int, shape: RunShape) -> None:
    """Raise ValueError if a last stage has nothing before it to distil, or no policy to train.

    Args:
        steps: batches of the stage; 0 turns it off.
    """
    if not steps:
        return
    if shape.frozen:
        raise ValueError(
            f"strategy.distil_steps is {steps}, but training.frozen is true, so nothing can be distilled; "
            "set strategy.distil_steps to 0"
        )
    if steps >= shape.steps:
        raise ValueError(
            f"strategy.distil_steps is {steps}, but {shape.steps_field} is {shape.steps}; expected fewer, "
            "because the first batches find the instruction that the last ones distil"
        )
    batch = shape.questions_per_step * shape.group_size
    if shape.rollout_budget is not None and shape.rollout_budget < (steps + 1) * batch:
        raise ValueError(
            f"strategy.distil_steps is {steps}, but training.rollout_budget, {shape.rollout_budget}, pays for "
            f"{shape.rollout_budget // batch} batches of {batch}; expected fewer distil_steps, or at least "
            f"{(steps + 1) * batch}"
        )


def taught_groups(
    tasks: Sequence[Task], size: int, initial: Instruction, best: Instruction
) -> list[Assignment]:
    """Return a batch of the last stage: sampled under the best instruction, trained on the initial one.

    The policy under the best instruction teaches. Rollouts under the initial one could not teach what the
    policy never does there: KL(p ‖ q) has no gradient if p is certain.
    """
    plain, sampled = Prompt(initial.text), Prompt(best.text)
    return [
        Assignment(task, sampled, plain, best.id, group, None if best == initial else sampled)
        for group, task in enumerate(tasks)
        for _ in range(size)
    ]
