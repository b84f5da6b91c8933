"""Candidates on trial in training batches: what is sampled, who joins, at which error, and a stop on the way."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from cotune.methods.inspo.inspo import METHOD, Inspo, InspoOptions
from cotune.methods.inspo.population import Population
from cotune.methods.inspo.trial import TRIAL_ERROR, Contestant, Trial, evidence
from cotune.methods.method import Context, RunShape
from cotune.types import Assignment, Instruction, Progress, Prompt, StopReason, Task, Trajectory
from tests.helpers import (
    INITIAL,
    Events,
    ScriptedRollout,
    check_a_stop_changes_nothing,
    make_tasks,
    make_trajectory,
    reply,
    run,
)
from tests.scripted import Author

TASKS = make_tasks(40)
PARENT = Instruction("i0", INITIAL)
CHANCES = {
    "Decompose the question into simpler ones first.": 0.95,
    "Never look anything up at all.": 0.02,
}


def chance(text: str) -> float:
    return next((value for word, value in CHANCES.items() if word in text), 0.4)


def writer(*sentences: str) -> Author:
    """An LLM whose replies depend on the prompt alone, so that a second attempt gets the same ones."""
    rewrites = reply("Take care of every word.", "Look twice at it.")
    later = reply(*(sentences or (*CHANCES, "Be calm, as always.")))
    return Author(lambda n, prompt: rewrites if "Improve the above prompt" in prompt else later)


def options(**changes: Any) -> InspoOptions:
    small: dict[str, Any] = {"population_size": 3, "prune_every": 0, "evolve_every": 2}
    small |= {"evolve_until": 30, "verification": "trial", "verification_tasks": 12}
    return InspoOptions(**(small | changes))


def inspo(**changes: Any) -> Inspo:
    return Inspo(options(**changes), Context(instruction=INITIAL, seed=1, tasks=TASKS))


def contestant(name: str, *question_ids: str) -> Contestant:
    candidate = Instruction(name, f"text {name}", "i0", "reflection", 3, "", question_ids)
    return Contestant(Population(5, 0.2).new_member(candidate), PARENT)


def assign(task: Task, id: str, index: int) -> Assignment:
    prompt = Prompt(f"text {id}")
    return Assignment(task, prompt, prompt, id, index)


def group(index: int, task: Task, id: str, rewards: Sequence[float]) -> list[Trajectory]:
    return [make_trajectory(assign(task, id, index), r) for r in rewards]


def test_a_trial_takes_half_of_the_groups_and_half_of_each() -> None:
    strategy, record, rollout = inspo(), Events(), ScriptedRollout(chance)
    run(strategy, rollout, writer(), record, range(1, 3), TASKS[:8], 5)
    assert not record.of("trial")
    progress = Progress(3, 0, 100)
    strategy.evolve_if_due(progress, rollout, writer(), record)
    (trial,) = record.of("trial")
    candidates = set(trial["candidates"])
    assert len(candidates) == 2  # vacancies
    rows = strategy.assign(TASKS[:8], 5, progress)
    groups = [[a.instruction_id for a in rows if a.group == g] for g in range(8)]
    tried = [ids for ids in groups if candidates & set(ids)]
    assert len(tried) == 4
    assert all(len(set(ids)) == 1 for ids in groups if ids not in tried)
    for ids in tried:
        (parent,) = set(ids) - candidates
        assert ids[:3] == [parent] * 3
        assert len(set(ids[3:])) == 1
    assert set(Counter(ids[-1] for ids in tried).values()) == {2}
    assert all(a.sampled == a.trained for a in rows)  # each rollout trains its own instruction


def test_nobody_is_tried_on_a_question_that_its_authors_were_shown() -> None:
    trial = Trial([contestant("i5", "q0", "q1", "q2"), contestant("i6", "q3")], {})
    for key in map(str, range(20)):
        for index, candidate in trial.draw_groups(TASKS[:4], key).items():
            assert TASKS[index].id not in candidate.instruction.shown
    nobody = Trial([contestant("i5", *(task.id for task in TASKS))], {})
    assert nobody.draw_groups(TASKS, "0") == {}
    assert len(trial.draw_groups(TASKS[4:5], "0")) == 1  # a batch of one question makes progress


def test_the_better_joins_the_worse_goes_and_no_rollout_is_paid() -> None:
    strategy, record, rollout = inspo(), Events(), ScriptedRollout(chance)
    run(strategy, rollout, writer(), record, range(1, 13), TASKS[:12], 6)
    assert {purpose for purpose, _ in rollout.calls} == {"train"}
    (joined,) = [
        row
        for row in record.of("instruction_born")
        if "Decompose the question into simpler ones first." in row["text"]
    ]
    assert joined["score"] > joined["parent_score"] + 0.3
    assert joined["born"] > 3  # the step after its trial, which began before step 3
    tried = [row for row in record.of("instruction_rejected") if row["score"] is not None]
    worse = [row for row in tried if "Never look anything up at all." in row["text"]]
    assert worse[0]["reason"] == "below its parent"
    assert worse[0]["score"] < worse[0]["parent_score"]
    evolution, *_ = record.of("evolution")
    assert (evolution["verified"], evolution["accepted"]) == (2, 1)
    # Only the parent stayed beside it, and what it did on trial is its weight.
    assert strategy.best().id == joined["id"]
    assert strategy.choice().rollouts >= 3 * 3


def test_while_a_trial_lasts_no_phase_follows_and_the_population_stands() -> None:
    strategy, record = inspo(verification_tasks=200, candidates=1, population_size=2), Events()
    llm = writer("Be calm, as always.")
    metrics = run(strategy, ScriptedRollout(lambda _: 0.0), llm, record, range(1, 12), TASKS[:4])
    assert len(record.of("trial")) == 1
    assert metrics[-1]["inspo/on_trial"] == 1.0
    assert metrics[-1]["inspo/population_size"] == 2.0


@pytest.mark.parametrize(("reward", "verdict"), [(0.5, ""), (0.6, ""), (0.4, "below its parent")])
def test_after_its_groups_the_mean_decides(reward: float, verdict: str) -> None:
    child = contestant("i5")
    trial = Trial([child], {})
    for index, task in enumerate(TASKS[:3]):
        parents = group(index, task, "i0", [0.0, 1.0])
        trial.observe(group(index, task, "i5", [reward] * 2) + parents, {"i5": [reward] * 2})
        assert trial.decide(4, ends=False) == []
    assert trial.decide(3, ends=False) == [(child, verdict)]
    assert trial.contestants == []
    assert Trial([child], {}).decide(9, ends=True) == [(child, "undecided after 3 groups")]


def test_a_group_that_compares_nothing_says_nothing() -> None:
    child = contestant("i5")
    broken = [make_trajectory(assign(TASKS[0], "i0", 0), 0.0, stop=StopReason.ENVIRONMENT_ERROR)]
    child.observe(group(0, TASKS[0], "i5", [1.0]) + broken)  # the parent's half broke
    child.observe(group(1, TASKS[1], "i0", [1.0, 0.0]))  # another's group
    assert child.groups == []
    child.observe(group(0, TASKS[0], "i5", [1.0, 0.0]) + group(0, TASKS[0], "i0", [0.0]) + broken)
    assert child.groups == [(1.0, 0.0, 1.0)]  # one of each: equal halves


def test_evidence_by_hand() -> None:
    gains = [0.5, -0.25, 1.0]
    expected = [
        math.prod(math.exp(bet * g) / ((math.exp(bet * g) + math.exp(-bet * g)) / 2) for g in gains)
        for bet in (0.5, 1.0, 2.0, 4.0)
    ]
    assert evidence(gains) == pytest.approx(sum(expected) / 4)


def verdict_of(lead: float, seed: int, scale: float = 1.0) -> str | None:
    """The verdict on a contestant whose chances are higher by `lead`, of rewards of 0 and `scale`."""
    rng = random.Random(seed)
    child = contestant("i5")
    for index, task in enumerate(TASKS):
        ease = rng.random() * 0.6
        rewards, parents = (
            [scale * (rng.random() < ease + more) for _ in range(4)] for more in (lead, 0.0)
        )
        child.observe(group(index, task, "i5", rewards) + group(index, task, "i0", parents))
        if (verdict := child.verdict(41)) is not None:
            return verdict
    return None


def test_the_test_errs_as_seldom_as_it_says_and_finds_the_better_one() -> None:
    equal = [verdict_of(0.0, seed) for seed in range(300)]
    assert 0.01 < equal.count("") / 300 < TRIAL_ERROR
    assert 0.01 < equal.count("below its parent") / 300 < TRIAL_ERROR
    assert [verdict_of(0.3, seed) for seed in range(100)].count("") > 90


@pytest.mark.parametrize("scale", [0.001, 300.0])
def test_the_verdict_does_not_depend_on_the_size_of_rewards(scale: float) -> None:
    for lead in (0.0, 0.3):
        expected = [verdict_of(lead, seed) for seed in range(40)]
        assert [verdict_of(lead, seed, scale) for seed in range(40)] == expected


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_stop_during_a_trial_changes_nothing(stop: int) -> None:
    check_a_stop_changes_nothing(
        inspo, ScriptedRollout(chance), writer(), TASKS[:6], stop=stop, steps=9
    )


def test_the_last_stage_ends_a_trial() -> None:
    strategy, record = inspo(verification_tasks=200, distil_steps=2), Events()
    run(strategy, ScriptedRollout(lambda _: 0.0), writer(), record, range(1, 7), TASKS[:8], total=6)
    reasons = {row["reason"] for row in record.of("instruction_rejected")}
    assert len(record.of("trial")) == 1
    assert "undecided after 4 groups" in reasons
    assert len(record.of("evolution")) == 1


def test_a_trial_costs_no_rollouts() -> None:
    shape = RunShape(group_size=2, steps=20)
    assert METHOD.cost(options(), shape).rollouts == {}
    assert METHOD.cost(options(verification="full"), shape).rollouts["verify"] > 0
