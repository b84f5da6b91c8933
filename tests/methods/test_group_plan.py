from dataclasses import replace
from typing import Any

import pytest

from cotune.methods.fst import fst
from cotune.methods.group_plan import check_target, distillation_of, planned, spread
from cotune.methods.inspo import inspo
from cotune.methods.method import Context, Method
from cotune.types import Distillation, FilteredDistillation, Instruction, KLDistillation, Prompt
from tests.helpers import make_tasks

FIRST, A, B, C = (Instruction(f"i{n}", f"Text {n}.") for n in range(4))
(TASK,) = make_tasks(1)


@pytest.mark.parametrize(
    ("groups", "drawn", "size", "ids"),
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
def test_what_a_group_is_sampled_under(
    groups: Any, drawn: list[Instruction], size: int, ids: str
) -> None:
    rows = planned(TASK, 7, size, groups, drawn, FIRST, None)
    assert "".join(row.instruction_id[1] for row in rows) == ids
    assert {(row.task, row.group) for row in rows} == {(TASK, 7)}
    for row, number in zip(rows, ids, strict=True):
        assert row.trained == row.sampled == Prompt(f"Text {number}.")
    on_one = planned(TASK, 7, size, groups, drawn, FIRST, B)
    assert [row.sampled for row in on_one] == [row.sampled for row in rows]
    assert {row.trained for row in on_one} == {Prompt("Text 2.")}


@pytest.mark.parametrize(("size", "taught"), [(4, [2, 3]), (5, [3, 4]), (1, [])])
def test_a_teacher_reads_the_rollouts_under_the_initial_instruction(
    size: int, taught: list[int]
) -> None:
    rows = planned(TASK, 7, size, "mixed", [A], FIRST, None, taught=True)
    plain = planned(TASK, 7, size, "mixed", [A], FIRST, None)
    assert [i for i, row in enumerate(rows) if row.teacher] == taught
    assert {row.teacher for row in rows} <= {None, Prompt("Text 1.")}
    assert [(r.sampled, r.trained) for r in rows] == [(r.sampled, r.trained) for r in plain]
    # The initial instruction has nothing to teach itself.
    own = planned(TASK, 7, size, "mixed", [FIRST], FIRST, None, taught=True)
    assert not any(row.teacher for row in own)


KL, FILTERED = KLDistillation(kind="kl"), FilteredDistillation(kind="filtered")


@pytest.mark.parametrize(
    ("target", "distillation", "groups", "said"),
    [
        ("initial", KL, "mixed", "target is 'initial', but distillation.kind is 'kl'"),
        ("sampled", KL, "own", "kind is 'kl', but no rollout has a teacher; expected distil_steps"),
        ("sampled", KL, "population", "kind is 'kl', but no rollout has a teacher"),
        ("sampled", FILTERED, "mixed", "kind is 'filtered', which rolls out under hints, and this"),
    ],
)
def test_instructions_teach_in_mixed_groups_alone(
    target: Any, distillation: Any, groups: Any, said: str
) -> None:
    check_target("sampled", KL, "mixed")
    check_target("sampled", KL, "own", distil_steps=2)
    check_target("sampled", FILTERED, "mixed", distil_steps=2)
    with pytest.raises(ValueError, match="target is 'initial', whose rollouts need a mask"):
        check_target("initial", FILTERED, "mixed", distil_steps=2)
    with pytest.raises(ValueError, match="distil_steps is 2, a last stage with a teacher, but"):
        check_target("initial", Distillation(), "own", distil_steps=2)
    with pytest.raises(ValueError, match=said):
        check_target(target, distillation, groups)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (inspo.METHOD, inspo.InspoOptions(groups="mixed", target="initial", credit="uplift")),
        (fst.METHOD, fst.FstOptions(target="best")),
    ],
)
def test_training_on_another_instruction_has_the_signed_mask_by_default(
    method: Method[Any], options: Any
) -> None:
    signed, given = Distillation(ratio="masked_signed"), Distillation(ratio="hint")
    context = Context(instruction="Text.", tasks=make_tasks(4))
    assert method.distillation(options) == method.build(options, context).distillation == signed
    assert method.distillation(replace(options, distillation=given)) is given
    on_policy = replace(options, target="sampled")
    assert method.distillation(on_policy) == Distillation() == distillation_of(None, "sampled")


def test_a_spread_gives_every_instruction_a_share() -> None:
    for count in range(1, 5):
        drawn = [FIRST, A, B, C][:count]
        for size in range(count, 12):
            counts = [spread(drawn, size).count(one) for one in drawn]
            assert max(counts) - min(counts) <= 1
