import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from cotune.errors import BudgetError, ConfigError, EngineError, EvolutionError, LLMError
from cotune.methods.fst import METHOD, Fst, FstOptions, Gepa, GepaOptions
from cotune.methods.method import Context, RunShape
from cotune.methods.text_evolution import greedy_cover
from cotune.types import Assignment, Distillation, Progress, Prompt, StopReason, Trajectory
from tests.helpers import (
    INITIAL,
    Events,
    ScriptedRollout,
    check_a_stop_changes_nothing,
    decomposing,
    make_tasks,
    make_trajectory,
    rules_llm,
    run,
)
from tests.scripted import Author, raising

TASKS = make_tasks(30)


def fst(seed: int = 1, tasks: int = 30, **changes: Any) -> Fst:
    small: dict[str, Any] = {"prompts": 2, "evolve_every": 3, "budget": 120, "dev_size": 10}
    context = Context(instruction=INITIAL, tasks=TASKS[:tasks], seed=seed)
    return Fst(FstOptions(**{**small, **changes}), context)


@pytest.mark.parametrize(
    ("scores", "count", "cover"),
    [
        ([[0.0, 0.0]], 4, [0]),
        ([[1, 0, 0], [0, 1, 1]], 1, [1]),
        ([[1, 0, 0], [0, 1, 1]], 4, [1, 0]),
        ([[1, 0, 0], [0, 1, 1], [0, 0, 1]], 4, [1, 0]),  # the last is below the front
        ([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]], 4, [0]),  # a tie adds nothing
        ([[0.6, 0.6, 0.6], [1, 0, 0.5], [0, 0.9, 0.5], [0, 0, 0.7]], 3, [0, 1, 2]),
        ([[0.0, 0.0, 0.0], [0.0, -1.0, 0.0]], 2, [0]),
    ],
)
def test_the_cover_of_the_front_by_hand(scores: Any, count: int, cover: list[int]):
    assert greedy_cover(scores, -math.inf)[:count] == cover


def test_rounds_run_every_t_steps_from_the_first_and_never_exceed_their_budget():
    strategy, policy, events = fst(), ScriptedRollout(decomposing), Events()
    metrics = run(strategy, policy, rules_llm(3), events, range(1, 9), TASKS)
    assert [m.get("fst/evaluations", 0) > 0 for m in metrics] == [
        True, False, False, True, False, False, True, False,
    ]  # fmt: skip
    assert all(m.get("fst/evaluations", 0) <= 120 for m in metrics)
    assert len(events.of("gepa_phase")) == 3
    assert decomposing(strategy.best_prompt().instruction) == 0.9
    assert strategy.choice().rollouts > 0
    assert strategy.choice().steps > 0
    # A prompt is scored on questions that no reflection shows.
    dev = {task.id for task in strategy._dev}
    assert len(dev) == 10
    example_ids = {task_id for i in strategy._lineage for task_id in i.shown}
    assert example_ids
    assert not example_ids & dev
    choice = strategy.choice()
    assert choice.rollouts == strategy._observed[choice.instruction.id]
    observed = {row["id"]: row["observed"] for row in events.of("population")[-1]["members"]}
    assert observed[choice.instruction.id] == choice.weight == max(observed.values())
    assert strategy.evolve_if_due(Progress(7, 0, 9), policy, rules_llm(3), events) == {}


def test_a_last_stage_without_anything_to_distil_says_so():
    strategy = fst(distil_steps=3)
    events, policy = Events(), ScriptedRollout(lambda _: 0.0)  # no prompt is better
    run(strategy, policy, rules_llm(3), events, range(1, 10), TASKS, total=9)
    texts = [row["text"] for row in events.of("notice")]
    assert [text for text in texts if "distil" in text] == [
        "the last 3 batches have nothing to distil: no instruction is better than the initial one"
    ]


def test_groups_are_spread_over_the_prompts_and_trained_on_what_they_saw():
    strategy = fst()
    run(strategy, ScriptedRollout(decomposing), rules_llm(3), Events(), range(1, 4), TASKS)
    strategy._rows = {"i0": (1.0,), "i1": (0.0,)}
    assert len(strategy._prompts) == 2
    rows = strategy.assign(TASKS, 5, Progress(4, 0, 9))
    assert rows == strategy.assign(TASKS, 5, Progress(4, 0, 9))
    counts = [[r.instruction_id for r in rows[i : i + 5]].count("i1") for i in range(0, 150, 5)]
    assert set(counts) == {2, 3}  # the odd one goes to either
    assert all(row.trained == row.sampled for row in rows)
    distilling = fst(target="initial")
    distilling.load_state_dict(strategy.state_dict())
    moved = distilling.assign(TASKS, 5, Progress(4, 0, 9))
    assert [row.sampled for row in moved] == [row.sampled for row in rows]
    assert {row.trained for row in moved} == {Prompt(INITIAL)}
    assert distilling.checks_uplift
    assert not strategy.checks_uplift


@pytest.mark.parametrize("stop", range(1, 8))
def test_a_run_that_was_stopped_continues_as_if_it_was_not(stop: int):
    check_a_stop_changes_nothing(fst, ScriptedRollout(decomposing), rules_llm(5), TASKS, stop, 8)


def test_a_round_that_the_budget_does_not_cover_is_skipped():
    strategy, policy, events = fst(), ScriptedRollout(decomposing), Events()
    strategy.evolve_if_due(Progress(1, 0, 9, 119), policy, rules_llm(3), events)
    assert "a round of 120 evaluations is more than the 119" in events.of("notice")[0]["text"]
    assert not events.of("gepa_phase")
    assert strategy.choice().instruction.id == "i0"
    rows = strategy.assign(TASKS[:2], 4, Progress(1, 0, 9))
    assert {row.sampled for row in rows} == {Prompt(INITIAL)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 0}, "prompts is 0"),
        ({"budget": 35}, "strategy.budget is 35; expected at least 36, to score 2 prompts"),
        ({"tasks": 1}, "1 training questions"),
        ({"distillation": Distillation(ratio="masked_signed")}, "distillation is set, but target is 'sampled'"),
    ],
)  # fmt: skip
def test_refusals(changes: dict[str, Any], message: str):
    with pytest.raises((ValueError, ConfigError), match=message):
        fst(**changes)


@pytest.mark.parametrize(
    ("stage", "short", "reason"),
    [
        (0, 0, ""),
        (0, 1, r"strategy\.budget is 400, and 192 rollouts must follow"),
        (3, 0, ""),
        (3, 1, "and 768 rollouts must follow"),
    ],
)
def test_a_round_leaves_rollouts_for_a_batch_and_a_last_stage(
    stage: int, short: int, reason: str
) -> None:
    options = FstOptions(distil_steps=stage)
    budget = 400 + (1 + stage) * 192 - short
    shape = RunShape(group_size=8, questions_per_step=24, steps=4, rollout_budget=budget)
    assert METHOD.cost(options, shape).validations == (2 if stage else 1)
    with pytest.raises(ValueError, match=reason) if reason else nullcontext():
        METHOD.check(options, shape)


# ---- GEPA

FIRST = Progress(step=1, epoch=0, total_steps=3)


def gepa(**changes: Any) -> Gepa:
    options = GepaOptions(**{"budget": 200, "dev_size": 10, **changes})
    return Gepa(options, Context(instruction=INITIAL, tasks=TASKS, seed=1))


def by_rules(n: int, prompt: str) -> str:
    return rules_llm(3).complete(prompt).text


def run_search(
    chance: float | None = None, write: Callable[[int, str], str] = by_rules, **changes: Any
) -> tuple[Gepa, ScriptedRollout, Author, Events]:
    """A search by a policy that succeeds with a chance; None is `decomposing`."""
    policy = ScriptedRollout(decomposing if chance is None else lambda _: chance)
    strategy, author, record = gepa(**changes), Author(write), Events()
    strategy.evolve_if_due(FIRST, policy, author, record)
    return strategy, policy, author, record


def test_the_best_on_dev_is_kept_and_everything_is_sampled_under_it():
    strategy, policy, author, record = run_search(budget=400)
    lineage = strategy._lineage
    [end], [event] = record.of("gepa_phase_ended"), record.of("best_instruction")
    _, *born = record.of("instruction_born")
    means = [end["initial_dev_score"], *(row["score"] for row in born)]
    best = lineage[means.index(max(means))]
    assert max(means) > means[0]
    assert strategy.best_prompt() == Prompt(best.text)
    rows = strategy.assign(TASKS[:3], 2, FIRST)
    assert [(a.task, a.group) for a in rows] == [(TASKS[i // 2], i // 2) for i in range(6)]
    assert {a.sampled for a in rows} == {a.trained for a in rows} == {strategy.best_prompt()}
    assert {a.instruction_id for a in rows} == {strategy.best_instruction_id()} == {best.id}
    assert author.prompts
    assert end["evaluations"] == sum(len(rows) for _, rows in policy.calls)
    assert end["best_dev_score"] == max(means)
    assert (event["id"], event["weight"], event["observed_rollouts"]) == (best.id, max(means), 10)
    assert [row["id"] for row in born] == [f"i{n}" for n in range(1, len(lineage))]
    for instruction, row in zip(lineage[1:], born, strict=True):
        assert (row["text"], row["origin"], row["born"]) == (instruction.text, "gepa", 1)
        assert row["critique"]
        assert row["shown"] == instruction.shown != ()
        assert row["parent_score"] == means[int(row["parent"][1:])]
    worse = [row for row in record.of("instruction_rejected") if row["score"] is not None]
    assert {row["reason"] for row in worse} == {"not above its parent"}
    assert all(row["score"] <= row["parent_score"] for row in worse)


def test_a_search_without_failures_says_that_it_asked_for_nothing():
    _, _, author, record = run_search(chance=1.0)
    assert not author.prompts
    assert "no failure to reflect on" in record.of("notice")[-1]["text"]


def test_rollouts_with_an_environment_error_are_not_shown_but_told():
    def failing(rows: Sequence[Assignment], **how: Any) -> list[Trajectory]:
        return [make_trajectory(a, 0.0, stop=StopReason.ENVIRONMENT_ERROR) for a in rows]

    author, record = Author(by_rules), Events()
    with pytest.raises(
        EngineError, match="all rollouts to reflect on ended in an environment error"
    ):
        gepa().evolve_if_due(FIRST, failing, author, record)
    assert not author.prompts
    (notice,) = (row["text"] for row in record.of("notice"))
    assert "rollouts that score texts ended in an environment error and count as 0" in notice


@pytest.mark.parametrize("scoring", ["greedy", "sampled"])
def test_texts_are_scored_as_asked_and_prompts_name_the_texts_to_keep(scoring: Any):
    def rollout(rows: Sequence[Assignment], *, purpose: str, greedy: bool) -> list[Trajectory]:
        assert greedy == (scoring == "greedy")
        return ScriptedRollout(decomposing)(rows, purpose=purpose)

    author = Author(by_rules)
    gepa(scoring=scoring).evolve_if_due(FIRST, rollout, author, Events())
    line = "Keep these texts in the new instruction, letter by letter: <think>, </think>, <search>"
    assert all(line in prompt for prompt in author.prompts)


def test_an_llm_that_is_dead_or_spent_before_a_valid_instruction_is_an_error():
    for error in (LLMError("gone"), BudgetError("no money")):
        with pytest.raises(EvolutionError, match=f"of the only phase failed .*{error}"):
            run_search(write=raising(error))


def test_a_search_that_was_stopped_continues_as_if_it_was_not():
    check_a_stop_changes_nothing(gepa, ScriptedRollout(decomposing), rules_llm(5), TASKS, 1, 3)
