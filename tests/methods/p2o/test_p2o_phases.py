"""P²O at the end of an epoch: its phases, a reflector that fails, a state that goes on."""

import json
from dataclasses import replace

import pytest

from cotune.errors import LLMError
from cotune.methods.p2o.hints import HintPool
from cotune.types import Assignment, Progress
from tests.methods.p2o.hint_fakes import SMALL, one_keyword_each
from tests.methods.p2o.p2o_run import EASY, HARD, TASKS, Run, hinted_ids, hints, p2o
from tests.scripted import Author, raising

# ---- Phase 2


def test_the_epoch_ends_once():
    run = Run()
    run.batch(0)
    run.batch(0)
    assert run.policy.calls == []
    metrics = run.evolve(Progress(3, 1, 100))
    assert metrics == {
        "p2o/hard": 20.0,
        "p2o/newly_hard": 20.0,
        "p2o/graduated": 0.0,
        "p2o/solved_by_hint": 0.0,
        "p2o/withheld": 0.0,
    }
    state, calls, rows = run.strategy.state_dict(), len(run.policy.calls), len(run.events.rows)
    assert calls > 1
    assert run.evolve(Progress(3, 1, 100)) == {}
    assert run.evolve(Progress(4, 1, 100)) == {}
    assert run.strategy.state_dict() == state
    assert (len(run.policy.calls), len(run.events.rows)) == (calls, rows)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_skipped_phase_drops_the_hints_of_the_one_before_unless_they_are_kept(keeps: bool):
    run = Run(hints=replace(SMALL, keep_if_skipped=keeps))
    run.batch(0)
    left = {"q4", "q7", "q9"}  # one fewer than hard_set_min_count
    run.batch(1, lambda a, k: a.task.id not in left)
    pool, calls = run.pool, len(run.policy.calls)
    third = run.batch(2)
    (notice,) = run.events.of("notice")
    assert "3 hard questions, hard_set_min_count is 4" in notice["text"]
    assert ("the earlier ones are dropped" in notice["text"]) == (not keeps)
    assert (run.pool, len(run.policy.calls)) == (pool if keeps else None, calls)
    assert hinted_ids(third) == (left if keeps else set())
    assert len(run.events.of("hint_phase")) == 1
    run.batch(3)
    assert len(run.events.of("hint_phase")) == 2
    assert run.pool != pool


def test_no_rollout_sees_a_hint_that_was_derived_from_its_question():
    run = Run(hints=replace(SMALL, dev_size=4))
    few = [*HARD[:8], *EASY]  # so few that a minibatch of three is most of what is reflected on
    run.batch(0, tasks=few)
    withheld = set[str]()
    for epoch in (1, 2, 3):
        run.step += 1
        metrics = run.evolve(Progress(run.step, epoch, 100))
        assignments = run.batch(epoch, tasks=few)
        pool = HintPool(**run.pool)
        known = dict(zip(pool.texts, pool.shown, strict=True))
        hinted = hinted_ids(assignments)
        assert hinted
        assert not any(a.task.id in known[a.sampled.hint] for a in assignments)
        without = {task.id for task in HARD[:8]} - hinted
        assert metrics["p2o/withheld"] == len(without)
        withheld |= without
    assert withheld


# ---- a reflector that fails


def test_an_outage_of_the_llm_leaves_the_hints_of_the_phase_before():
    run = Run()
    run.batch(0)
    run.batch(1)
    pool = run.pool
    run.llm = Author(raising(LLMError("503")))
    assert hinted_ids(run.batch(2)) == {t.id for t in HARD}
    assert run.pool == pool


def test_hints_outlive_a_phase_that_brings_none():
    run = Run()
    run.batch(0)
    run.batch(1)
    run.llm = Author(lambda n, prompt: "")
    run.batch(2)
    run.llm = Author(one_keyword_each)
    assert hinted_ids(run.batch(3)) == {t.id for t in HARD}
    phases = run.events.of("hint_phase_ended")
    assert [row["valid"] > 0 for row in phases] == [True, False, True]
    for row in phases:
        texts = [hint["text"] for hint in row["solved"]]
        assert texts[0] == ""
        assert len(texts) == row["accepted"] + 1
        covered = {
            i
            for hint in row["solved"]
            if hint["text"] in row["covering_texts"]
            for i in hint["dev"]
        }
        dev = next(e["dev"] for e in run.events.of("hint_phase") if e["phase"] == row["phase"])
        assert row["solved_by_cover"] == len(covered) / dev
        assert row["solved_without"] == len(row["solved"][0]["dev"]) / dev


# ---- state


def test_a_state_saved_in_mid_epoch_continues_the_same():
    def succeeds(a: Assignment, k: int) -> bool:
        return a.task in EASY or a.task.id in {"q0", "q5", "q6", "q19"}

    author = Author(one_keyword_each)
    run = Run(llm=author)
    run.batch(0)
    run.batch(1, succeeds, TASKS[:9])
    saved = json.dumps(run.strategy.state_dict())
    copy = Run()
    copy.strategy.load_state_dict(json.loads(saved))
    assert json.dumps(copy.strategy.state_dict()) == saved
    copy.step = run.step
    copy.llm = Author(one_keyword_each, list(author.prompts))  # its replies are counted on
    for epoch, tasks in ((1, TASKS[9:]), (2, TASKS), (3, TASKS)):
        assert copy.batch(epoch, succeeds, tasks) == run.batch(epoch, succeeds, tasks)
    assert copy.strategy.state_dict() == run.strategy.state_dict()
    assert copy.policy.calls == run.policy.calls[-len(copy.policy.calls) :]
    trends = run.events.of("hard_samples")
    assert [t["hard"] for t in trends] == [20, 16, 16]


def test_draws_are_keyed_by_the_seed_and_the_epoch():
    one, same, other = Run(), Run(), Run(p2o(seed=2))
    for run in (one, same, other):
        run.batch(0)
    first = hints(one.batch(1))
    assert first == hints(same.batch(1))
    assert first != hints(other.batch(1))
    # The same hints and the same hard questions, but another epoch.
    one.strategy.load_state_dict({**one.strategy.state_dict(), "epoch": 7})
    assert hints(one.batch(7)) != first
