"""Group plans: what each rollout of a question's group is sampled under and trained on.

    groups      own         one drawn instruction for the whole group: INSPO's
                mixed       the drawn instruction for the first half, the initial one for the others
                population  several instructions, spread evenly: FST's
    target      sampled     the gradient is taken on the instruction that a rollout was sampled under
                initial     on the initial instruction, so that the gain moves into the weights

One advantage is computed over the whole group, so rollouts under different instructions are compared
with each other.
"""

from collections.abc import Sequence
from typing import Literal

from cotune.types import Instruction

Groups = Literal["own", "mixed", "population"]


def plan_instructions(
    groups: Groups, size: int, drawn: Sequence[Instruction], initial: Instruction
) -> list[Instruction]:
    """Return the instruction of each of a group's `size` rollouts.

    Drawn instructions are spread evenly: their counts differ by one at most.

    Args:
        drawn: the drawn instructions; one, or for "population" up to `size`.

    >>> a, b = Instruction("a", ""), Instruction("b", "")
    >>> "".join(one.id for one in plan_instructions("population", 5, [a, b], a))
    'aaabb'
    """
    count = size - size // 2 if groups == "mixed" else size
    spread = [drawn[i * len(drawn) // count] for i in range(count)]
    return spread + [initial] * (size - count)
