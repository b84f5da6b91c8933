"""Group plans: what each rollout of a question's group is sampled under and trained on.

    groups      own         one drawn instruction for the whole group: INSPO's
                mixed       the drawn instruction for the first half, the initial one for the others
                population  several instructions, spread evenly: FST's
    target      sampled     the gradient is taken on the instruction that a rollout was sampled under
                initial     on the initial instruction, so that the gain moves into the weights
                best        on the best instruction so far

With `KLDistillation` each rollout of a mixed group is trained on its own prompt, and the policy under the
drawn instruction teaches those under the initial one. A last stage (`methods.last_stage`) has its own plans.

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
    KLDistillation,
    Prompt,
    Task,
)
from cotune.utils.option_checks import are_new

Groups = Literal["own", "mixed", "population"]
Target = Literal["sampled", "initial", "best"]


def distillation_of(given: AnyDistillation | None, target: Target) -> AnyDistillation:
    """Return the distillation of a method without hints: as given, else by its target.

    Without a mask nothing bounds how far failures under one instruction are pushed down under another
    (docs/results/ladder.md, "Into the weights").
    """
    return given or Distillation(ratio="original" if target == "sampled" else "masked_signed")


def check_target(
    target: Target, distillation: AnyDistillation | None, groups: Groups, distil_steps: int = 0
) -> None:
    """Raise ValueError if target, distillation and groups contradict each other.

    Args:
        distillation: of a method without hints; None if not given.
        distil_steps: batches of the last stage.
    """
    distillation = distillation_of(distillation, target)
    if isinstance(distillation, KLDistillation):
        if target != "sampled":
            raise ValueError(
                f"target is {target!r}, but distillation.kind is 'kl', which trains every rollout on its own "
                "instruction; expected target 'sampled', or another kind"
            )
        if groups != "mixed" and not distil_steps:
            raise ValueError(
                "distillation.kind is 'kl', but no rollout has a teacher; expected distil_steps above 0, "
                "INSPO's groups 'mixed', or kind 'substitution'"
            )
        return
    if isinstance(distillation, FilteredDistillation):
        if are_new() and target != "sampled":
            raise ValueError(
                f"target is {target!r}, whose rollouts need a mask (distillation.kind 'substitution'), but "
                "distillation.kind is 'filtered', which has none; expected target 'sampled' with distil_steps, "
                "or no distillation"
            )
        if not distil_steps:
            raise ValueError(
                "distillation.kind is 'filtered', which rolls out under hints, and this method has none; "
                "expected 'substitution' or 'kl', or distil_steps above 0"
            )
        return
    if distil_steps:
        raise ValueError(
            f"distil_steps is {distil_steps}, a last stage with a teacher, but distillation.kind is "
            f"{distillation.kind!r}; expected 'filtered' or 'kl', or distil_steps 0"
        )
    if target == "sampled" and distillation != Distillation():
        raise ValueError(
            "distillation is set, but target is 'sampled', so nothing is distilled; expected target "
            "'initial' or 'best', or no distillation"
        )
    if distillation.drop_failed:
        raise ValueError(
            "distillation.drop_failed drops failed rollouts under hints, and this method has none; "
            "expected false"
        )
    if target != "sampled" and distillation.ratio == "off":
        raise ValueError(
            f"target is {target!r}, but distillation.ratio is 'off', no distillation; expected another "
            "ratio, or target 'sampled'"
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
    taught: bool = False,
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
        taught: whether a teacher under the drawn instruction reads the rollouts under the initial one.
    """
    count = drawn_count(groups, size)
    under = [*spread(drawn, count), *[initial] * (size - count)]
    target = None if trained is None else Prompt(trained.text)
    teacher = Prompt(drawn[0].text) if taught and drawn[0] != initial else None
    return [
        Assignment(
            task, prompt := Prompt(one.text), target or prompt, one.id, group,
            teacher if i >= count else None,
        )
        for i, one in enumerate(under)
    ]  # fmt: skip
