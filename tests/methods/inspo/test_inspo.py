import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotune.errors import EvolutionError, LLMError
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context
from cotune.protocols import Strategy
from cotune.run.best import best_id
from cotune.types import Assignment, Progress, Prompt, StopReason, Trajectory
from tests.helpers import (
    INITIAL,
    Events,
    ScriptedRollout,
    check_a_stop_changes_nothing,
    decomposing,
    make_tasks,
    make_trajectory,
    reply,
    rules_llm,
    run,
)
from tests.scripted import Author, ScriptedLLM, raising

TASKS = make_tasks(8)


def options(**changes: Any) -> InspoOptions:
    small = {"population_size": 4, "prune_every": 2, "evolve_every": 4, "evolve_until": 9}
    small |= {"verification_tasks": 6, "window": 2}
    return InspoOptions(**(small | changes))


def inspo(**changes: Any) -> Inspo:
    return Inspo(options(**changes), Context(instruction=INITIAL, seed=1, tasks=make_tasks(60)))


REWRITES = reply(
    "Be brief in what you write.", "Take as much time as needed.", "Be kind to all of us."
)


def with_population(**changes: Any) -> Inspo:
    """A strategy with its first population, i0 to i3."""
    strategy = inspo(**changes)
    run(strategy, ScriptedRollout(decomposing), ScriptedLLM([REWRITES]), Events(), range(1, 2), [])
    return strategy


def members(events: Events) -> list[list[str]]:
    return [[m["id"] for m in e["members"]] for e in events.of("population")]


# ---- the start


def test_initial_population_is_the_instruction_and_its_rewrites():
    strategy: Strategy = (concrete := inspo())
    events, llm = Events(), ScriptedLLM([REWRITES])
    (metrics,) = run(strategy, ScriptedRollout(decomposing), llm, events, range(1, 2), TASKS)
    assert [i.id for i in concrete._lineage] == ["i0", "i1", "i2", "i3"]
    assert [i.origin for i in concrete._lineage] == ["initial"] + ["rewrite"] * 3
    born = events.of("instruction_born")
    assert born[1] | {"text": ""} == {
        "id": "i1", "text": "", "parent": "i0", "origin": "rewrite", "born": 0,
        "critique": "It guessed.", "shown": (), "score": None, "parent_score": None,
    }  # fmt: skip
    assert f"<ins_0>\n{INITIAL}\n</ins_0>" in llm.prompts[0]

    rows = events.of("population")[0]["members"]
    assert sum(m["assigned_groups"] for m in rows) == len(TASKS)
    assert sum(m["observed_rollouts"] for m in rows) == 3 * len(TASKS)
    assert sum(m["probability"] for m in rows) == pytest.approx(1.0)
    assert metrics["inspo/population_size"] == 4
    assert metrics["inspo/initial_rewrites"] == 3
    assert metrics["inspo/best_weight"] == max(m["weight"] for m in rows)
    assert 0 < metrics["inspo/entropy"] <= 1.3863
    # What "best" goes by, which a reset of the weights leaves.
    assert best_id([{"kind": "population", "members": rows}]) == strategy.best_instruction_id()
    assert [m["observed"] for m in rows] == [m.observed for m in concrete.population.members]
    json.dumps(events.rows)


def test_rewrites_go_on_until_the_population_is_full_or_the_rounds_are_spent():
    events = Events()
    llm = ScriptedLLM([reply("Be brief in what you write."), REWRITES])
    run(inspo(), ScriptedRollout(decomposing), llm, events, range(1, 2), TASKS)
    assert len(llm.prompts) == 2
    assert "near copy" in events.of("instruction_rejected")[0]["reason"]
    assert members(events) == [["i0", "i1", "i2", "i3"]]
    llm = ScriptedLLM([reply("Be brief in what you write.")] * 3)
    run(inspo(verification_rounds=3), ScriptedRollout(decomposing), llm, events, range(1, 2), TASKS)
    assert len(llm.prompts) == 3
    assert events.of("notice")[-1]["text"] == "population of 2 instead of 4 instructions"


# ---- assignment and credit


def test_a_group_shares_its_draw_and_draws_are_keyed_by_step_and_group():
    strategy = with_population()
    rows = strategy.assign(make_tasks(40), 3, Progress(1, 0, 9))
    assert len(rows) == 120
    drawn_ids = [rows[i].instruction_id for i in range(0, 120, 3)]
    assert [r.instruction_id for r in rows] == [d for d in drawn_ids for _ in range(3)]
    assert set(drawn_ids) == {"i0", "i1", "i2", "i3"}
    assert rows == strategy.assign(make_tasks(40), 3, Progress(1, 0, 9))
    assert rows[:60] == strategy.assign(make_tasks(20), 3, Progress(1, 0, 9))
    assert rows != strategy.assign(make_tasks(40), 3, Progress(2, 0, 9))


@pytest.mark.parametrize("change", [{"stop": StopReason.ENVIRONMENT_ERROR}, {"scored": False}])
def test_a_rollout_that_ended_in_an_environment_error_is_not_credited(change):
    strategy = inspo(population_size=1, window=1)
    rows = strategy.assign(TASKS[:1], 2, Progress(1, 0, 9))
    solved, broken = (
        make_trajectory(row, reward) for row, reward in zip(rows, (1.0, 0.0), strict=True)
    )
    broken = replace(broken, **change)
    assert broken.trained_mask == (0,) * len(broken.mask)
    metrics = dict(strategy.observe([solved, broken], Progress(1, 0, 9), Events()))
    assert metrics["inspo/best_weight"] == 1.0


def test_mixed_groups_outlive_the_initial_instruction():
    strategy = with_population(groups="mixed", target="initial", window=1)
    rows = strategy.assign(TASKS, 4, Progress(1, 0, 9))
    assert {row.trained.instruction for row in rows} == {INITIAL}
    scores = [0.25 if row.instruction_id == "i0" else 0.5 for row in rows]
    strategy.observe(list(map(make_trajectory, rows, scores)), Progress(1, 0, 9), Events())
    assert strategy.population["i0"].weight == 0.25
    assert strategy.population["i1"].weight == 0.5
    strategy.population.keep_only({"i1"})
    rows = strategy.assign(TASKS, 4, Progress(2, 0, 9))
    assert [row.instruction_id for row in rows[:4]] == ["i1", "i1", "i0", "i0"]
    assert {row.trained for row in rows} == {Prompt(INITIAL)}
    strategy.observe([make_trajectory(row, 0.75) for row in rows], Progress(2, 0, 9), Events())
    assert strategy.choice().weight == 0.75


def test_the_last_stage_teaches_the_initial_instruction_by_the_best_and_evolves_nothing():
    strategy, events = (inspo(distil_steps=2), Events())
    rollout, llm = ScriptedRollout(decomposing), rules_llm(0)
    # Ten steps; an evolution falls due at the ends of 4 and 8, and 9 and 10 are the last stage.
    run(strategy, rollout, llm, events, range(1, 9), TASKS, total=10)
    weights = {member.id: member.weight for member in strategy.population.members}
    best = strategy.best_prompt()
    assert best.instruction != INITIAL
    for step in (9, 10):
        start = len(events.rows)
        run(strategy, rollout, llm, events, range(step, step + 1), TASKS, total=10)
        assert {kind for kind, _ in events.rows[start:]} == {"population"}
        rows = strategy.assign(TASKS, 4, Progress(step, 0, 10))
        assert {(r.sampled, r.trained, r.teacher) for r in rows} == {(best, Prompt(INITIAL), best)}
        assert {r.instruction_id for r in rows} == {strategy.best_instruction_id()}
    # The stage credits no instruction.
    assert {member.id: member.weight for member in strategy.population.members} == weights
    assert strategy.checks_uplift
    assert strategy.has_teacher
    assert not inspo().has_teacher


def test_the_last_stage_begins_when_the_budget_pays_for_no_more():
    strategy = inspo(distil_steps=2, verification_tasks=4)
    events, rollout, llm = Events(), ScriptedRollout(decomposing), rules_llm(0)
    run(strategy, rollout, llm, events, range(1, 5), TASKS)
    batch = 4 * len(TASKS)
    for budget, taught in ((3 * batch, False), (3 * batch - 1, True), (batch, True)):
        rows = strategy.assign(TASKS, 4, Progress(5, 0, 99, budget))
        assert any(r.teacher for r in rows) == taught
    # An evolution leaves enough for this batch and the last stage.
    budget = 3 * 3 * len(TASKS)
    strategy.evolve_if_due(Progress(5, 0, 99, budget + 4), rollout, llm, events)
    assert events.of("evolution")[-1]["verified"] == 0
    assert not [purpose for purpose, _ in rollout.calls if purpose == "verify"]


# ---- phases


def test_phases_run_first_thing_at_the_step_after_they_fall_due():
    strategy, events = inspo(), Events()
    rollout, llm = ScriptedRollout(decomposing), rules_llm(0)
    for step in range(1, 13):
        start = len(events.rows)
        run(strategy, rollout, llm, events, range(step, step + 1), TASKS)
        kinds = {kind for kind, _ in events.rows[start:]}
        assert ("evolution" in kinds) == (step in (5, 9)), step
        if step == 3:
            assert len(events.of("instruction_pruned")) == 2  # 4 -> 2
    sizes = [len(ids) for ids in members(events)]
    # Evolution at the ends of 4 and 8, pruning at those of 2, 4, 6 and 8, none from 9 on.
    assert sizes == [4, 4, 2, 2, 4, 4, 2, 2, 4, 4, 4, 4]
    causes = [e["cause"] for e in events.of("instruction_pruned")]
    assert causes == ["prune"] * 3 + ["prune"] * 3
    verify_calls = [rows for purpose, rows in rollout.calls if purpose == "verify"]
    assert verify_calls
    assert all(len({row.task.id for row in rows}) == 4 for rows in verify_calls)  # half of eight


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"prune_every": 0, "evolve_every": 0}, [4] * 10),
        ({"evolve_every": 0}, [4, 4, 2, 2, 1, 1, 1, 1, 1, 1]),
        ({"evolve_every": 0, "evolve_until": 4}, [4, 4, 2, 2, 2, 2, 2, 2, 2, 2]),
        ({"evolve_every": 0, "parents": 2}, [4, 4, 2, 2, 2, 2, 2, 2, 2, 2]),
    ],
)
def test_ablations_by_option(changes, sizes):
    events = Events()
    run(inspo(**changes), ScriptedRollout(decomposing), rules_llm(0), events, range(1, 11), TASKS)
    assert [len(ids) for ids in members(events)] == sizes


def evolve_once(
    llm: ScriptedLLM, start: float = 0.2, budget: int | None = None, **changes: Any
) -> tuple[Inspo, Events]:
    """One run up to the first evolution; only "GOOD" instructions do better than `start`."""
    quality = {"GOOD": 1.0, "BAD": 0.0}

    def chance_of(text: str) -> float:
        return next((p for mark, p in quality.items() if mark in text), start)

    strategy, events = inspo(population_size=3, prune_every=0, **changes), Events()
    run(strategy, ScriptedRollout(chance_of), llm, events, range(1, 5), TASKS)
    strategy.evolve_if_due(Progress(5, 0, 9, budget), ScriptedRollout(chance_of), llm, events)
    return strategy, events


TWO = reply("Be brief in what you write.", "Take as much time as needed.")


def test_verification_rejects_the_worse_and_the_newcomer_starts_from_its_gain():
    llm = ScriptedLLM(
        [TWO, reply("Be BAD at all of this.", "Try to be GOOD in that."), *["none"] * 4]
    )
    strategy, events = evolve_once(llm, start=0.5)
    (rejected,) = events.of("instruction_rejected")
    assert rejected["reason"] == "below its parent"
    assert "BAD" in rejected["text"]
    assert rejected["score"] == 0.0
    assert rejected["parent_score"] > 0
    born = events.of("instruction_born")[-1]
    assert (born["origin"], born["born"], born["score"]) == ("reflection", 5, 1.0)
    state = strategy.state_dict()["population"]["members"]
    assert [m["instruction"]["id"] for m in state] == [born["parent"], born["id"]]
    parent_weight = sum(state[0]["window"]) / len(state[0]["window"])
    assert state[1]["start"] == pytest.approx(parent_weight + 1.0 - born["parent_score"])
    (evolution,) = events.of("evolution")
    assert evolution | {"parents": []} == {
        "parents": [], "rounds": 5, "proposed": 2, "verified": 2, "accepted": 1,
        "population": 2,
    }  # fmt: skip
    assert {e["cause"] for e in events.of("instruction_pruned")} == {"evolution"}
    assert events.of("notice")[-1]["text"] == "population of 2 instead of 3 instructions"


def test_no_round_of_verification_begins_that_the_budget_cannot_pay():
    replies = [TWO, reply("Be BAD at all of this.", "Try to be GOOD in that."), *["none"] * 4]
    _, plenty = evolve_once(ScriptedLLM(list(replies)), start=0.5)
    (evolution,) = plenty.of("evolution")
    batch, tasks = 3 * len(TASKS), len(TASKS) // 2  # the others are kept to be reflected on
    cost = (options().candidates + 1) * tasks  # every candidate that can come, and their parent
    _, enough = evolve_once(ScriptedLLM(list(replies)), start=0.5, budget=batch + cost)
    assert enough.of("evolution")[0]["verified"] == evolution["verified"] > 0
    llm = ScriptedLLM(list(replies))
    _, short = evolve_once(llm, start=0.5, budget=batch + cost - 1)
    assert short.of("evolution")[0]["verified"] == 0
    assert "too few rollouts are left to verify before step 5" in [
        event["text"] for event in short.of("notice")
    ]
    assert len(llm.prompts) == 1  # nothing was asked for what could not be verified


def test_without_verification_newcomers_join_at_their_parents_weight():
    llm = ScriptedLLM([TWO, reply("Be BAD at all of this.", "Try to be GOOD in that.")])
    strategy, events = evolve_once(llm, verification="none")
    (evolution,) = events.of("evolution")
    assert (evolution["verified"], evolution["accepted"]) == (0, 2)
    parent, *newcomers = strategy.state_dict()["population"]["members"]
    weight = sum(parent["window"]) / len(parent["window"])
    assert [m["start"] for m in newcomers] == [weight, weight]


def test_the_population_stays_where_nothing_is_accepted():
    llm = ScriptedLLM([TWO, *[reply("Be BAD at all of this.")] * 5])
    strategy, events = evolve_once(llm, start=0.9)
    assert events.of("evolution")[0]["accepted"] == 0
    assert len(strategy.state_dict()["population"]["members"]) == 3
    assert events.of("instruction_pruned") == []
    reasons = [e["reason"] for e in events.of("instruction_rejected")]
    # Tried once; what comes again costs no rollouts.
    assert reasons == ["below its parent"] + ["near copy of one alive or tried"] * 4


# ---- provenance: nobody is verified on what the author was shown


def rules_author() -> Author:
    """The rules; it keeps its prompts."""
    return Author(lambda n, prompt: rules_llm(0).complete(prompt).text)


class Verified(ScriptedRollout):
    """A policy that fails often, and what each verification had: ids, questions, and those last shown."""

    def __init__(self, llm: Author) -> None:
        super().__init__(lambda text: min(0.8, len(text) / 1500))
        self.llm = llm
        self.verified: list[tuple[set[str], set[str], set[str]]] = []

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        if purpose == "verify":
            ids = {row.instruction_id for row in assignments}
            tasks = {row.task.id for row in assignments}
            basis = {f"q{n}" for n in re.findall(r"Question: .*Town(\d+) is", self.llm.prompts[-1])}
            self.verified.append((ids, tasks, basis))
        return super().__call__(assignments, purpose=purpose, greedy=greedy)


@pytest.mark.parametrize("proposer", ["reflection", "paraphrase"])
def test_no_instruction_is_verified_on_a_question_that_its_author_was_shown(proposer):
    changes = {"evolve_every": 2, "prune_every": 0, "evolve_until": 99}
    strategy, resumed = inspo(**changes), inspo(**changes, proposer=proposer)
    events, llm = Events(), rules_author()
    policy = Verified(llm)
    run(strategy, policy, llm, events, range(1, 8), make_tasks(40))
    resumed.load_state_dict(json.loads(json.dumps(strategy.state_dict())))
    run(resumed, policy, llm, events, range(8, 14), make_tasks(40))
    born = {row["id"]: row for row in events.of("instruction_born")}
    sources = {identity: set(row["shown"]) for identity, row in born.items()}
    assert any(len(basis) > 4 for basis in sources.values())  # some have ancestors that were shown
    assert any(row["origin"] == proposer for row in born.values())
    for identity, row in born.items():
        assert sources.get(row["parent"], set()) <= sources[identity]
    assert len(policy.verified) > 3
    for ids, questions, basis in policy.verified:
        (parent,) = ids & sources.keys()
        assert len(questions) == 6
        assert not questions & (sources[parent] | basis)


@pytest.mark.parametrize("count", [1, 8])
def test_a_bank_reads_no_question_so_all_are_left_to_verify_on(count: int):
    events, llm = Events(), rules_author()
    llm.origin = "bank"  # pyright: ignore[reportAttributeAccessIssue]
    policy = Verified(llm)
    run(inspo(evolve_every=2), policy, llm, events, range(1, 6), make_tasks(count))
    assert {row["shown"] for row in events.of("instruction_born")} == {()}
    assert {len(questions) for _, questions, _ in policy.verified} == {min(count, 6)}
    assert not any("verification on" in event["text"] for event in events.of("notice"))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_run_with_few_questions_keeps_some_to_verify_on(count):
    strategy, events, llm = inspo(evolve_every=1, evolve_until=99), Events(), rules_author()
    policy = Verified(llm)
    run(strategy, policy, llm, events, range(1, 8), make_tasks(count))
    assert bool(policy.verified) == (count > 1)
    assert all(questions and not questions & basis for _, questions, basis in policy.verified)
    notices = [event["text"] for event in events.of("notice")]
    # A single question is reflected on or verified on, never both.
    assert any("no experience to learn from" in text for text in notices) == (count == 1)
    assert any(f"instead of {count} questions before step" in text for text in notices) == (
        count > 1
    )


# ---- an LLM that fails

DOWN = raising(LLMError("connection refused"))


def test_the_first_phase_is_the_last_if_the_others_would_fall_into_the_last_stage():
    strategy = inspo(distil_steps=5)  # evolves after step 4
    policy = ScriptedRollout(decomposing)
    with pytest.raises(EvolutionError, match="connection refused"):
        run(strategy, policy, Author(DOWN), Events(), range(1, 2), TASKS, total=9)
    strategy = inspo(distil_steps=4)
    run(strategy, policy, Author(DOWN), Events(), range(1, 2), TASKS, total=9)


# ---- state, options


@pytest.mark.parametrize("stop", range(1, 11))
@pytest.mark.parametrize(
    ("groups", "proposer"),
    [("own", "reflection"), ("mixed", "reflection"), ("population", "paraphrase")],
)
def test_a_run_that_was_stopped_continues_as_if_it_was_not(stop, groups, proposer):
    def fresh() -> Inspo:
        return inspo(proposer=proposer, groups=groups)

    check_a_stop_changes_nothing(fresh, ScriptedRollout(decomposing), rules_llm(5), TASKS, stop, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"population_size": 0}, "population_size is 0"),
        ({"parents": 4}, "parents is 4; expected fewer than population_size, 4"),
        ({"prune_every": -1}, "prune_every is -1"),
        ({"selection_temperature": 0.0}, "selection_temperature is 0.0"),
    ],
)
def test_options_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        options(**changes)


@pytest.mark.parametrize("count", [3, 4])
def test_few_questions_a_step_are_noticed_once(count: int) -> None:
    events, policy = Events(), ScriptedRollout(decomposing)
    run(inspo(), policy, ScriptedLLM([REWRITES]), events, range(1, 3), TASKS[:count])
    starts = [row["text"].partition(",")[0] for row in events.of("notice")]
    assert starts == ["3 questions a step"] * (count == 3)
