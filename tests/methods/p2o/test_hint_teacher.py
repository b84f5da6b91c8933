"""Hints as a teacher's: what P²O assigns for `kl`, and what it rolls out once more for `filtered`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.methods.composed import ComposedInspoOptions, ComposedOptions, ComposedP2OOptions
from cotune.methods.method import RunShape
from cotune.methods.p2o import p2o
from cotune.methods.p2o.p2o import P2OOptions
from cotune.types import Assignment, FilteredDistillation, KLDistillation, Progress, Trajectory
from tests.helpers import make_trajectory
from tests.methods.p2o.p2o_run import EASY, GROUP, HARD, PLAIN, TASKS, Run, hints

KL = KLDistillation(kind="kl")
FILTERED = FilteredDistillation(kind="filtered")
LATER = Progress(2, 1, 100)


class Retried:
    """A policy that solves every other rollout under a hint."""

    def __init__(self) -> None:
        self.asked: list[Assignment] = []

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        assert (purpose, greedy) == ("train", False)
        self.asked += assignments
        return [
            replace(make_trajectory(a, float(i % 2)), sampled_prompt_ids=(7, 8))
            for i, a in enumerate(assignments)
        ]


def hard_run(**changes: Any) -> Run:
    """A run after its first epoch, in which every question of HARD failed."""
    run = Run(**changes)
    run.batch(0)
    return run


def test_kl_gives_the_hints_to_a_teacher_and_samples_without():
    ours, paper = hard_run(distillation=KL).batch(1), hints(hard_run().batch(1))
    assert all(a.sampled == a.trained == PLAIN for a in ours)
    taught = {t.id: [a.teacher for a in ours if a.task == t] for t in TASKS}
    assert all(teacher is None for t in EASY for teacher in taught[t.id])
    for task in HARD:  # the same hints as substitution's
        assert tuple(teacher.hint for teacher in taught[task.id] if teacher) == paper[task.id]
    assert all(teacher.instruction == PLAIN.instruction for teacher in taught["q0"] if teacher)


@pytest.mark.parametrize(("option", "count"), [("all", 4), ("half", 2)])
def test_how_many_of_a_group_have_a_teacher(option: Any, count: int):
    batch = hard_run(distillation=KL, hinted_per_group=option).batch(1)
    assert sum(a.teacher is not None for a in batch if a.task == HARD[0]) == count


@pytest.mark.parametrize("distillation", [KL, FILTERED])
def test_the_empty_hint_teaches_nothing(distillation: Any):
    run, policy = hard_run(distillation=distillation), Retried()
    run.evolve(LATER)
    state = run.strategy.state_dict()
    pool = state["pool"]
    pool["scores"][0] = [1.0] * len(pool["dev"])  # the empty hint solves all, so it is drawn most
    run.strategy.load_state_dict(state)
    batch = run.strategy.assign(TASKS, GROUP, LATER)
    if distillation is KL:
        taught = [a.teacher for a in batch if a.teacher]
        assert len(taught) < len(HARD) * GROUP
        assert all(teacher.hint for teacher in taught)
    else:
        failed = [make_trajectory(a, 0.0) for a in batch]
        _, metrics = run.strategy.retry(failed, GROUP, LATER, policy)
        assert metrics["distil/retried"] == len(policy.asked) < len(HARD) * GROUP
        assert all(a.sampled.hint for a in policy.asked)


def plain_batch(run: Run, rewards: Sequence[float]) -> list[Trajectory]:
    """Rollouts of HARD's first question with these rewards, of others that fail, and of an easy one."""
    run.evolve(LATER)
    assignments = run.strategy.assign([*HARD[:3], EASY[0]], GROUP, LATER)
    assert all(a.sampled == a.trained == PLAIN and a.teacher is None for a in assignments)
    given = [*rewards, *[0.0] * (3 * GROUP)]
    return [make_trajectory(a, r) for a, r in zip(assignments, given, strict=True)]


def test_filtered_retries_groups_that_failed_and_keeps_their_successes():
    run, policy = hard_run(distillation=FILTERED), Retried()
    before = plain_batch(run, (0, 0, 1, 0))
    batch, metrics = run.strategy.retry(before, GROUP, LATER, policy)
    # Neither the group with a success nor the easy question, whose hints are none.
    assert [a.task for a in policy.asked] == [t for t in HARD[1:3] for _ in range(GROUP)]
    assert all(a.sampled.hint and a.trained == PLAIN for a in policy.asked)
    drawn = hints(hard_run().batch(1))
    assert [a.sampled.hint for a in policy.asked[:GROUP]] == list(drawn[HARD[1].id])
    assert metrics == {"distil/retried": 8.0, "distil/kept": 4.0}
    kept = [i for i, t in enumerate(batch) if t.teacher_prompt_ids]
    assert kept == [5, 7, 9, 11]
    assert all(batch[i].teacher_prompt_ids == (7, 8) for i in kept)
    assert [t.reward for t in batch] == [t.reward for t in before]  # so none has an advantage
    assert [t.assignment.group for t in batch] == [t.assignment.group for t in before]
    assert all(batch[i] is before[i] for i in range(len(batch)) if i not in kept)


def test_a_group_with_a_gradient_is_left_to_it():
    """Rewards below `solved_at` that differ are failures with an advantage."""
    run, policy = hard_run(distillation=FILTERED), Retried()
    run.strategy.retry(plain_batch(run, (0.1, 0.2, 0, 0)), GROUP, LATER, policy)
    assert HARD[0] not in {a.task for a in policy.asked}
    again = plain_batch(run, (0.9, 0.9, 0.9, 0.9))  # solved by all
    policy.asked.clear()
    run.strategy.retry(again, GROUP, LATER, policy)
    assert HARD[0] not in {a.task for a in policy.asked}


@pytest.mark.parametrize(("left", "groups"), [(0, 0), (7, 1), (8, 2), (100, 2)])
def test_no_more_is_retried_than_the_budget_covers(left: int, groups: int):
    run, policy = hard_run(distillation=FILTERED), Retried()
    progress = replace(LATER, rollouts_left=left)
    run.strategy.retry(plain_batch(run, (1, 0, 0, 0)), GROUP, progress, policy)
    assert len(policy.asked) == groups * GROUP


@pytest.mark.parametrize("distillation", [KL, p2o.Distillation()])
def test_other_kinds_retry_nothing(distillation: Any):
    run = hard_run(distillation=distillation)
    run.evolve(LATER)
    batch = [make_trajectory(a, 0.0) for a in run.strategy.assign(TASKS, GROUP, LATER)]
    assert run.strategy.retry(batch, GROUP, LATER, Retried()) == (batch, {})


@pytest.mark.parametrize("distillation", [KL, FILTERED])
def test_with_a_teacher_all_rollouts_of_a_group_judge_its_question(distillation: Any):
    options = P2OOptions(distillation=distillation, judged_on="plain", successes_below=GROUP)
    assert options.judged(GROUP) == GROUP
    p2o.check(options, RunShape(group_size=GROUP))


def test_options_are_told_apart_by_their_kind():
    read = TypeAdapter(P2OOptions).validate_python
    assert read({"distillation": {"ratio": "masked"}}) == P2OOptions(
        distillation=p2o.Distillation(ratio="masked")
    )
    assert read({"distillation": {"kind": "kl", "gate": "none"}}).distillation == replace(
        KL, gate="none"
    )
    assert read({"distillation": {"kind": "filtered"}}).distillation == FILTERED
    for wrong in ({"kind": "kl", "ratio": "masked"}, {"weight": 1.0}, {"kind": "none"}):
        with pytest.raises(ValidationError):
            read({"distillation": wrong})
    dumped = TypeAdapter(P2OOptions).dump_python(P2OOptions(distillation=KL))
    assert read(dumped) == P2OOptions(distillation=KL)


def test_composed_expects_rollouts_on_their_own_instruction():
    with pytest.raises(ValueError, match=r"p2o.distillation.kind is 'kl', for rollouts that"):
        ComposedOptions(p2o=ComposedP2OOptions(distillation=KL))
    own = ComposedInspoOptions(groups="own", target="sampled", credit="centred")
    ComposedOptions(inspo=own, p2o=ComposedP2OOptions(distillation=KL))
