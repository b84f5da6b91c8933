import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import BudgetError, EvolutionError, LLMError
from cotune.methods.method import Context, Evolution
from cotune.methods.p2o.hints import HintOptions, HintPool, assign_hints, candidates, covering
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.methods.text_evolution import feedback, read_fenced, split
from cotune.protocols import LLM
from cotune.types import Assignment, Progress, Prompt, StopReason, Task, Trajectory, Turn
from tests.helpers import Events, make_tasks, make_trajectory
from tests.methods.p2o.hint_fakes import (
    SMALL,
    Policy,
    evolve,
    leaking,
    one_keyword_each,
    tasks_of_two_kinds,
)
from tests.scripted import Author, raising

POOL = HintPool(
    ("", "columns", "units", "both few"),
    ("q0", "q1", "q2", "q3", "q4"),
    (
        (0.0, 0.0, 0.0, 0.0, 0.0),
        (1.0, 1.0, 1.0, 0.0, 0.0),  # mean 0.6
        (0.0, 0.0, 1.0, 1.0, 0.0),  # mean 0.4: adds q3
        (1.0, 0.0, 0.0, 1.0, 0.0),  # mean 0.4: adds q3 too, but later
    ),
    ((),) * 4,
)


def pool_of(*rows: tuple[int, ...]) -> HintPool:
    texts = tuple(f"h{i}" for i in range(len(rows)))
    dev = tuple(f"q{j}" for j in range(len(rows[0])))
    return HintPool(texts, dev, tuple(tuple(map(float, row)) for row in rows), ((),) * len(rows))


@pytest.mark.parametrize(
    ("pool", "cover"),
    [
        (POOL, [1, 2]),  # what adds most, then what adds any
        # 0 solves most and comes first, though 1 and 2 alone would cover all.
        (pool_of((0, 1, 1, 1, 1, 0), (1, 1, 1, 0, 0, 0), (0, 0, 0, 1, 1, 1)), [0, 1, 2]),
        (pool_of((1, 0, 0), (0, 1, 0), (0, 0, 1)), [0, 1, 2]),
        # Once q0 to q2 are covered, 1 and 2 both add q3 alone; 2 has the higher mean.
        (pool_of((1, 1, 1, 0), (0, 0, 0, 1), (0, 1, 0, 1)), [0, 2]),
        (pool_of((0, 0), (0, 0)), []),
        (pool_of((1, 1), (1, 1)), [0]),  # the seed counts like any other
    ],
)
def test_cover_by_hand(pool: HintPool, cover: list[int]):
    assert covering(pool) == cover


def test_dev_questions_get_only_hints_that_solved_them():
    draws = assign_hints(POOL, ["q0", "q2", "q3", "q4", "elsewhere"], 400, "key")
    assert set(draws["q0"]) == {"columns"}
    assert set(draws["q3"]) == {"units"}  # not "both few": it is not in the cover
    for either in ("q2", "q4", "elsewhere"):  # by both, by none, not of dev: all of the cover
        count = Counter(draws[either])
        assert set(count) == {"columns", "units"}
        assert 0.5 < count["columns"] / 400 < 0.7  # weights 0.6 and 0.4


def test_rewards_below_zero_give_weights_all_the_same():
    # Means -1/3 and -2/3, and 1/2 and -1/2: a mean that is not above 0 is no weight.
    both_below = pool_of((1, 1, -1, -1, -1, -1), (-1, -1, 1, -1, -1, -1))
    one_below = pool_of((1, 1, 1, -1), (-1, -1, -1, 1))
    for pool, share in ((both_below, 2 / 3), (one_below, 3 / 4)):
        count = Counter(assign_hints(pool, ["elsewhere"], 400, "key")["elsewhere"])
        assert set(count) == {"h0", "h1"}
        assert abs(count["h0"] / 400 - share) < 0.08


def pool_showing(*ids: Sequence[str]) -> HintPool:
    return replace(POOL, shown=tuple(map(tuple, ids)))


def test_no_question_draws_a_hint_that_was_derived_from_it():
    # "columns" and "units" cover; "both few" solves two, too.
    pool = pool_showing("", ["t1", "t2", "t3"], ["t2", "t3"], ["t3"])
    assert candidates(pool, ["t0", "t1", "t2", "t3"]) == {
        "t0": [1, 2],
        "t1": [2],
        "t2": [3],  # none of the cover is left
        "t3": [],
    }
    draws = assign_hints(pool, ["t0", "t1", "t2", "t3"], 400, "key")
    assert {i: set(hints) for i, hints in draws.items()} == {
        "t0": {"columns", "units"},
        "t1": {"units"},
        "t2": {"both few"},
    }
    # Nor does it cover it: "both few" now adds q0.
    pool = pool_showing("", ["q0", "q1", "q2"], [], [])
    assert pool.solved(1) == frozenset()
    assert covering(pool) == [2, 3]
    assert candidates(pool, ["q0", "q1"]) == {"q0": [3], "q1": [2, 3]}
    # No hint solved anything.
    assert candidates(pool_of((0, 0)), ["q0"]) == assign_hints(pool_of((0, 0)), ["q0"], 6, "") == {}


@pytest.mark.parametrize(
    ("count", "dev"), [(1000, 300), (450, 300), (449, 224), (100, 50), (3, 1), (2, 1)]
)
def test_split_sizes(count: int, dev: int):
    tasks = make_tasks(count)
    dev_tasks, train_tasks = split(tasks, HintOptions().dev_size, "key")
    assert (len(dev_tasks), len(train_tasks)) == (dev, count - dev)
    assert {t.id for t in (*dev_tasks, *train_tasks)} == {t.id for t in tasks}
    assert split(tasks[::-1], HintOptions().dev_size, "key") == (dev_tasks, train_tasks)
    assert count < 100 or split(tasks, HintOptions().dev_size, "other") != (dev_tasks, train_tasks)


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.tuples(
                st.text(),
                st.lists(st.sampled_from([0.0, 1.0]), min_size=width, max_size=width),
                st.frozensets(st.sampled_from(["q0", "q1", "q2"])),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
def test_a_cover_covers_all_that_is_solved(rows: list[tuple[str, list[float], frozenset[str]]]):
    dev = tuple(f"q{j}" for j in range(len(rows[0][1])))
    texts, scores, basis = zip(*rows, strict=True)
    pool = HintPool(texts, dev, tuple(map(tuple, scores)), tuple(map(tuple, basis)))
    cover = covering(pool)
    assert pool.solved_share(cover) == pool.solved_share(range(len(rows)))
    assert len(set(cover)) == len(cover)
    assert not any(task_id in basis[h] for task_id, hs in candidates(pool, dev).items() for h in hs)


BAD_REFLECTORS: dict[str, tuple[Callable[[int, str], str], str, str]] = {
    "errs": (raising(LLMError("timed out after 3 tries")), "proposal_failed", "LLMError: timed out"),
    "garbage": (lambda n, prompt: f"```{'x y ' * 2_500}```", "hint_rejected", "9999 characters"),
    "cut off": (lambda n, prompt: "<think> a ```Try``` is", "proposal_failed", "holds no hint"),
    "unclosed": (lambda n, prompt: "```\n<think> Go on\n```", "hint_rejected", "unclosed <think>"),
    "seed": (lambda n, prompt: "```\n```", "proposal_failed", "holds no hint"),
    "leaks": (leaking, "hint_rejected", "the answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REFLECTORS)
def test_the_run_goes_on_with_what_it_has_and_a_second_failed_phase_is_an_error(name: str):
    write, event, reason = BAD_REFLECTORS[name]
    author, policy, record = Author(write), Policy(), Events()
    strategy = p2o()
    pool = next_pool(strategy, policy, author, record, step=5)
    if name == "errs":  # no reply at all: what was there before is kept, which is nothing
        assert pool is None
    else:
        assert pool is not None
        assert pool.texts == ("",)
    # Two iterations of four parents each, then the phase gives up; no child is evaluated.
    assert len(author.prompts) == 8
    assert policy.evaluations == 2 * 12 + 8
    assert len(record.of(event)) == 8
    assert all(reason in rejected["reason"] for rejected in record.of(event))
    assert record.of("hint_phase_ended")[0]["valid"] == 0
    saved = json.loads(json.dumps(strategy.state_dict()))
    strategy = p2o()
    strategy.load_state_dict(saved)
    assert strategy.state_dict() == saved
    with pytest.raises(EvolutionError, match=f"of 2 phases in a row failed .*{reason}"):
        next_pool(strategy, policy, author, record, step=10)


def p2o() -> P2O:
    return P2O(P2OOptions(hints=SMALL), Context(instruction="Solve it.", seed=1))


def next_pool(
    strategy: P2O, policy: Policy, llm: LLM, record: Events, step: int
) -> HintPool | None:
    evolution = Evolution(Progress(step, 0, 9), policy, llm, record)
    return strategy.next_pool(tasks_of_two_kinds(20), evolution)


def test_single_turn_asks_from_the_empty_hint_and_evolves_none():
    policy, author, record = Policy(), Author(one_keyword_each), Events()
    pool, _ = evolve(policy, author, record, reflection="single_turn")
    assert len(author.prompts) == 4
    assert all("perform a task for me:\n```\n\n```" in prompt for prompt in author.prompts)
    minibatches, dev = policy.calls
    assert len({a.task.id for a in minibatches}) == len(minibatches) == 12
    assert len(dev) == (1 + 4) * 8
    assert len(pool.texts) == 5
    assert [e["parent"] for e in record.of("hint_accepted")] == [""] * 4
    assert len(covering(pool)) == 2


def test_single_turn_ends_with_the_llms_budget():
    def write(n: int, prompt: str) -> str:
        if n:
            raise BudgetError("the next call could exceed llm.budget")
        return one_keyword_each(n, prompt)

    policy, author = Policy(), Author(write)
    pool, _ = evolve(policy, author, reflection="single_turn")
    assert (len(pool.texts) - 1, len(author.prompts)) == (1, 2)
    minibatches, dev = policy.calls
    assert (len(minibatches), len(dev)) == (12, 2 * 8)


def trajectory(reward: float, answer: str | None, **changes: Any) -> Trajectory:
    task = Task("q", "What is 48 + 37?", ("85", "85.0"))
    prompt = Prompt("Solve it.")
    rollout = make_trajectory(Assignment(task, prompt, prompt, "", 0), reward)
    return replace(rollout, **{"answer": answer, **changes})


@pytest.mark.parametrize(
    ("sample", "text", "truth"),
    [
        (trajectory(1.0, "85"), "Correct.", ""),
        (trajectory(0.0, "75"), "Wrong: the final answer 75 is not correct.", " The correct answer is 85 or 85.0."),
        (
            trajectory(0.0, None, stop=StopReason.TOKEN_LIMIT),
            "Wrong: no final answer in the expected format was found. "
            "The response was ended by: token limit.",
            " The correct answer is 85 or 85.0.",
        ),
        (
            trajectory(0.0, None, turns=(Turn("a", error="no tag"), Turn("b", error="no tag"))),
            "Wrong: no final answer in the expected format was found. Errors on the way: no tag.",
            " The correct answer is 85 or 85.0.",
        ),
    ],
)  # fmt: skip
def test_feedback_names_what_was_wrong_and_the_truth_only_by_option(
    sample: Trajectory, text: str, truth: str
):
    assert feedback(sample, False) == text
    assert feedback(sample, True) == text + truth
    task = replace(sample.task, answers=())
    unanswered = replace(sample, assignment=replace(sample.assignment, task=task))
    assert feedback(unanswered, True) == text
    # What reward functions say follows.
    assert (
        feedback(replace(sample, feedback="exact: Off by 3."), False) == f"{text}\nexact: Off by 3."
    )


@pytest.mark.parametrize("show_answers", [False, True])
def test_prompts_hold_question_response_and_feedback(show_answers: bool):
    author = Author(one_keyword_each)
    evolve(Policy(), author, show_answers=show_answers)
    first_prompt = author.prompts[0]
    assert "Provide the new instructions within ``` blocks." in first_prompt
    assert first_prompt.count("Wrong: the final answer nothing is not correct.") == 3
    assert first_prompt.count("## Generated Outputs\nI say nothing") == 3
    assert first_prompt.count("The correct answer is secret") == 3 * show_answers
    wrong_only = [p for p in author.prompts if "Correct." not in p]
    assert wrong_only
    assert any("secret" in prompt for prompt in wrong_only) == show_answers


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Sure:\n```\nCarry.\n```\nDone.", ("Sure:", ["Carry."])),
        ("<think>perhaps ```no```</think>\n```\nCarry.\n```", ("", ["Carry."])),
        ("<think>about <think> and </think> I\n```x```</think>\nWhy\n```\nDo.\n```", ("Why", ["Do."])),
        ("about\n```x```</think>\nWhy\n```\nDo.\n```", ("Why", ["Do."])),
        ("<think>on and on\n```\nDo.\n```", ("", [])),
        ("```Carry.", ("", [])),
        ("```\n \n```", ("", [])),
        ("", ("", [])),
        ("<think>Put it in ``` blocks.</think>\n```\nhint\n```", ("", ["hint"])),
        ("```\na\n``` and ```\nleft open", ("", [])),
    ],
)  # fmt: skip
def test_read_fenced(reply: str, expected: tuple[str, list[str]]):
    assert read_fenced(reply) == expected
