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

from cotune.types import Assignment, Instruction, Prompt, Task

Groups = Literal["own", "mixed", "population"]


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
        Assignment(
            task, prompt := Prompt(instruction.text), target or prompt, instruction.id, group
        )
        for instruction in under
    ]
