from dataclasses import replace
from typing import Any

import pytest

from cotune.methods import fst
from cotune.methods.inspo import inspo
from cotune.methods.last_stage import TrainedPromptOptions, plan_instructions
from cotune.methods.method import Context, Method
from cotune.types import Distillation, Instruction
from tests.helpers import make_tasks

FIRST, A, B, C = (Instruction(f"i{n}", f"Text {n}.") for n in range(4))


@pytest.mark.parametrize(
    ("groups", "instructions", "size", "ids"),
    [
        ("own", [A], 4, "1111"),
        ("mixed", [A], 4, "1100"),
        ("mixed", [A], 5, "11100"),
        ("mixed", [A], 1, "1"),
        ("mixed", [FIRST], 4, "0000"),
        ("population", [A, B, C], 6, "112233"),
        ("population", [A, B, C], 8, "11122233"),
        ("population", [A, B, C], 2, "12"),
    ],
)
def test_what_a_group_is_plan_instructions(
    groups: Any, instructions: list[Instruction], size: int, ids: str
) -> None:
    rows = plan_instructions(groups, size, instructions, FIRST)
    assert "".join(instruction.id[1] for instruction in rows) == ids


@pytest.mark.parametrize(
    ("target", "distillation", "distil_steps", "message"),
    [
        ("initial", None, 2, "distil_steps is 2, but target is 'initial', which moves the gain"),
        ("sampled", Distillation(ratio="masked_signed"), 0, "but target is 'sampled', so nothing"),
    ],
)
def test_the_gain_moves_into_the_weights_in_one_way(
    target: Any, distillation: Distillation | None, distil_steps: int, message: str
) -> None:
    TrainedPromptOptions(distil_steps=2)
    with pytest.raises(ValueError, match=message):
        TrainedPromptOptions(target=target, distillation=distillation, distil_steps=distil_steps)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (inspo.METHOD, inspo.InspoOptions(groups="mixed", target="initial")),
        (fst.METHOD, fst.FstOptions(target="initial")),
    ],
)
def test_training_on_another_instruction_has_the_signed_mask_by_default(
    method: Method, options: Any
) -> None:
    signed, original = Distillation(ratio="masked_signed"), Distillation(ratio="original")
    context = Context(instruction="Text.", tasks=make_tasks(4))
    assert method.distillation(options) == method.build(options, context).distillation == signed
    assert method.distillation(replace(options, distillation=original)) is original
    on_policy = replace(options, target="sampled")
    assert method.distillation(on_policy) == Distillation()
