"""Group plans: what each rollout of a question's group is sampled under and trained on.

    groups      own         one drawn instruction for the whole group: INSPO's
                mixed       the drawn instruction for the first half, the initial one for the others
                population  several instructions, spread evenly: FST's
    target      sampled     the gradient is taken on the instruction that a rollout was sampled under
                initial     on the initial instruction, so that the gain moves into the weights

A last stage (`methods.last_stage`) has its own plan.

One advantage is computed over the whole group, so rollouts under different instructions are compared
with each other. P²O adds hints to the rollouts under a drawn instruction.
"""

from collections.abc import Sequence
from typing import Literal

from cotune.types import (
    AnyDistillation,
    Assignment,
    Distillation,
    FilteredDistillation,
    Instruction,
    Prompt,
    Task,
)

Groups = Literal["own", "mixed", "population"]
Target = Literal["sampled", "initial"]


def distillation_of(given: AnyDistillation | None, target: Target) -> AnyDistillation:
    """Return the distillation of a method without hints: as given, else by its target.

    Without a mask nothing bounds how far failures under one instruction are pushed down under another
    (lab/results/ladder.md, "Into the weights").
    """
    return given or Distillation(ratio="original" if target == "sampled" else "masked_signed")


def check_target(target: Target, distillation: AnyDistillation | None, distil_steps: int) -> None:
    """Raise ValueError if target, distillation and last stage contradict each other.

    Args:
        distillation: of a method without hints; None if not given.
        distil_steps: batches of the last stage.
    """
    distillation = distillation_of(distillation, target)
    if isinstance(distillation, FilteredDistillation):
        if target != "sampled":
            raise ValueError(
                f"target is {target!r}, whose rollouts need a mask (distillation.kind 'substitution'), but "
                "distillation.kind is 'filtered', which has none; expected target 'sampled' with distil_steps, "
                "or no distillation"
            )
        if not distil_steps:
            raise ValueError(
                "distillation.kind is 'filtered', the loss of a last stage, but distil_steps is 0; expected "
                "distil_steps above 0, or kind 'substitution'"
            )
        return
    if distil_steps:
        raise ValueError(
            f"distil_steps is {distil_steps}, a last stage with a teacher, but distillation.kind is "
            f"{distillation.kind!r}; expected 'filtered', or distil_steps 0"
        )
    if target == "sampled" and distillation != Distillation():
        raise ValueError(
            "distillation is set, but target is 'sampled', so nothing is distilled; expected target "
            "'initial', or no distillation"
        )


def drawn_count(groups: Groups, size: int) -> int:
    """Return how many rollouts of a group, from the first, are sampled under drawn instructions."""
    return size - size // 2 if groups == "mixed" else size


def spread(drawn: Sequence[Instruction], size: int) -> list[Instruction]:
    """Return one instruction for each of `size` rollouts, with counts that differ by one at most.

    >>> a, b = Instruction("a", ""), Instruction("b", "")
    >>> "".join(one.id for one in spread([a, b], 5))
    'aaabb'
    """
    return [drawn[i * len(drawn) // size] for i in range(size)]


def planned(
    task: Task,
    group: int,
    size: int,
    groups: Groups,
    drawn: Sequence[Instruction],
    initial: Instruction,
    trained: Instruction | None,
) -> list[Assignment]:
    """Return the assignments of one group.

    Args:
        task: the question.
        group: the group's index in its batch.
        size: G, rollouts of the group.
        groups: the plan.
        drawn: the drawn instructions; one, or for "population" up to `size`.
        initial: the initial instruction.
        trained: the instruction that the gradient is taken on; None is each rollout's own.
    """
    count = drawn_count(groups, size)
    under = [*spread(drawn, count), *[initial] * (size - count)]
    target = None if trained is None else Prompt(trained.text)
    return [
        Assignment(task, prompt := Prompt(one.text), target or prompt, one.id, group)
        for one in under
    ]
