import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cotune.errors import EngineError, LLMError
from cotune.methods.p2o.hints import covering
from cotune.methods.text_evolution import MINIBATCH
from cotune.types import Task
from tests.helpers import Events
from tests.methods.p2o.hint_fakes import (
    KEYWORDS,
    Policy,
    by_keyword,
    evolve,
    one_keyword_each,
    one_phase,
    tasks_of_two_kinds,
)
from tests.scripted import Author, raising

REPOSITORY = Path(__file__).parents[2]


def test_hints_for_both_kinds_end_up_in_the_cover():
    policy, author, record = Policy(), Author(one_keyword_each), Events()
    pool, search = evolve(policy, author, record)
    cover = [pool.texts[i] for i in covering(pool)]
    assert len(cover) == 2
    assert all(any(keyword in text for text in cover) for keyword in KEYWORDS.values())
    assert pool.texts[0] == ""
    assert pool.scores == tuple(
        tuple(float(by_keyword(task, text)) for task in map(by_id, pool.dev)) for text in pool.texts
    )
    [start], [end] = record.of("hint_phase"), record.of("hint_phase_ended")
    sizes = {"hard": 20, "dev": 8, "train": 12, "budget": 150}
    assert start == {"phase": 1, **sizes, "reflection": "gepa"}
    assert (end["solved_without"], end["solved_by_cover"]) == (0.0, 1.0)
    assert end["covering"] == 2
    assert end["covering_texts"] == cover
    assert end["evaluations"] == search.evaluations == policy.evaluations
    assert end["valid"] == end["proposed"] == end["asked"] == len(author.prompts)
    accepted = record.of("hint_accepted")
    assert tuple(event["text"] for event in accepted) == pool.texts[1:]
    assert {event["parent"] for event in accepted} <= set(pool.texts)
    assert [event["mean_dev_score"] for event in accepted] == [
        pool.mean(i) for i in range(1, len(pool.texts))
    ]

    # One call of the rollout for each batch.
    seed, parents, children, dev, *_ = policy.calls
    assert [a.sampled.hint for a in seed] == [""] * 8
    # Four parents on a minibatch of three each; the same for their children.
    assert len(parents) == len(children) == 12
    assert {a.sampled.hint for a in parents} == {""}
    assert len({a.sampled.hint for a in children}) == 4
    assert len(dev) % 8 == 0
    assert {a.task.id for a in dev} == {a.task.id for a in seed}
    assert not {a.task.id for a in parents} & {a.task.id for a in dev}
    for call in policy.calls:
        assert [a.group for a in call] == list(range(len(call)))
        assert all(a.trained == a.sampled and a.instruction_id == "" for a in call)
        assert all(a.sampled.instruction == "Solve it." for a in call)


def test_a_hint_carries_the_questions_that_it_and_its_ancestors_were_derived_from():
    def write(n: int, prompt: str) -> str:
        hint = one_keyword_each(n, prompt)
        sources[hint.split("```")[1].strip()] = {
            f"q{i}" for i in re.findall(r"Problem (\d+) of", prompt)
        }
        return hint

    sources: dict[str, set[str]] = {}
    record = Events()
    pool, _ = evolve(Policy(), Author(write), record)
    parents = {row["text"]: row["parent"] for row in record.of("hint_accepted")}
    assert pool.shown[0] == ()
    assert any(parents.values())
    for text, question_ids in zip(pool.texts[1:], pool.shown[1:], strict=True):
        lineage = [text]
        while parents[lineage[-1]]:
            lineage.append(parents[lineage[-1]])
        assert set(question_ids) == set().union(*(sources[ancestor] for ancestor in lineage))
        assert len(question_ids) >= 3
        assert not {*question_ids} & {*pool.dev}


@pytest.mark.parametrize("budget", [22, 33, 34, 60, 61, 100, 250])
def test_no_batch_begins_that_the_budget_does_not_cover(budget: int):
    policy, record = Policy(), Events()
    _, search = evolve(policy, Author(one_keyword_each), record, budget=budget)
    assert search.evaluations == policy.evaluations <= budget
    # A parent, its child and the child's dev scores would cost more than what is left.
    assert policy.evaluations > budget - (2 * MINIBATCH + 8)
    assert record.of("hint_progress")[-1]["evaluations"] == policy.evaluations


def test_budget_is_reckoned_from_dev_where_none_is_given():
    record = Events()
    evolve(Policy(lambda task, hint: True), Author(one_keyword_each), record, 6, budget=None)
    assert record.of("hint_phase")[0]["budget"] == 3 + 5 * 72 + 108 * 35 + 22 * 3


def by_id(task_id: str) -> Task:
    return {task.id: task for task in tasks_of_two_kinds(20)}[task_id]


def test_another_process_makes_the_same_calls():
    code = "from tests.methods.p2o.hint_fakes import one_phase; print(one_phase())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    child = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
    )
    assert (child.stdout.strip(), child.stderr) == (one_phase(), "")


def test_gepa_says_and_writes_nothing(capfd: pytest.CaptureFixture[str], cwd: Path):
    evolve(Policy(), Author(one_keyword_each))
    evolve(Policy(), Author(raising(LLMError("down"))))
    assert tuple(capfd.readouterr()) == ("", "")
    assert list(cwd.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AssertionError("a bug")])
def test_nothing_raised_is_swallowed(error: BaseException):
    author = Author(raising(error))  # pyright: ignore[reportArgumentType]
    with pytest.raises(type(error)):
        evolve(Policy(), author)
    assert len(author.prompts) == 1


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_errors_of_the_policy_go_through(call: int):
    def solves(task: Task, hint: str) -> bool:
        if len(policy.calls) == call:
            raise EngineError("out of memory")
        return by_keyword(task, hint)

    policy = Policy(solves)
    with pytest.raises(EngineError, match="out of memory"):
        evolve(policy, Author(one_keyword_each))
    assert len(policy.calls) == call
