import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cotune.errors import BudgetError, EvolutionError, LLMError
from cotune.methods.method import Context, Evolution
from cotune.methods.p2o.hints import HintOptions, HintPool, covering
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.protocols import LLM
from cotune.types import Progress, StopReason, Trajectory
from tests.helpers import Events
from tests.methods.p2o.hint_fakes import (
    SMALL,
    Policy,
    evolve,
    leaking,
    one_keyword_each,
    tasks_of_two_kinds,
)
from tests.scripted import Author, raising

BAD_REFLECTORS: dict[str, tuple[Callable[[int, str], str], str, str]] = {
    "errs": (raising(LLMError("timed out after 3 tries")), "proposal_failed", "LLMError: timed out"),
    "garbage": (lambda n, prompt: f"```{'x y ' * 2_500}```", "hint_rejected", "9999 characters"),
    "cut off": (lambda n, prompt: "<think> a ```Try``` is", "proposal_failed", "holds no hint"),
    "unclosed": (lambda n, prompt: "```\n<think> Go on\n```", "hint_rejected", "unclosed <think>"),
    "seed": (lambda n, prompt: "```\n```", "proposal_failed", "holds no hint within"),
    "apology": (lambda n, prompt: f"I am sorry, but I can't help with request {n}.", "proposal_failed", "the reply holds no hint within ``` blocks"),
    "leaks": (leaking, "hint_rejected", "the answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_REFLECTORS)
@pytest.mark.parametrize("reflection", ["gepa", "single_turn"])
def test_the_run_goes_on_with_what_it_has_and_a_second_failed_phase_is_an_error(
    name: str, reflection: Any
):
    write, event, reason = BAD_REFLECTORS[name]
    author, policy, record = Author(write), Policy(), Events()
    strategy = p2o_of(replace(SMALL, reflection=reflection))
    run = runner(strategy, policy, author, record)
    pool = run(step=5)
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
    strategy = p2o_of(replace(SMALL, reflection=reflection))
    strategy.load_state_dict(saved)
    assert strategy.state_dict() == saved
    with pytest.raises(EvolutionError, match=f"2 phases in a row failed.*{reason}"):
        runner(strategy, policy, author, record)(step=10)


def p2o_of(options: HintOptions) -> P2O:
    return P2O(P2OOptions(hints=options), Context(instruction="Solve it.", seed=1))


def runner(
    strategy: P2O, policy: Policy, llm: LLM, record: Events
) -> Callable[..., HintPool | None]:
    def run(step: int) -> HintPool | None:
        now = Evolution(Progress(step, 0, 9), policy, llm, record)
        return strategy.next_pool(tasks_of_two_kinds(20), now)

    return run


def test_a_budget_that_scores_no_hint_skips_the_phase_and_says_so():
    record, policy = Events(), Policy()
    strategy = p2o_of(replace(SMALL, budget=21))
    assert runner(strategy, policy, Author(one_keyword_each), record)(1) is None
    assert policy.calls == []
    [(kind, fields)] = record.rows
    assert kind == "notice"
    assert "hints.budget is 21, but scoring one hint on 8 questions takes 22" in fields["text"]


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


def test_a_phase_that_lost_its_scores_keeps_the_hints():
    class Failing(Policy):
        def __call__(self, *arguments: Any, **how: Any) -> list[Trajectory]:
            done = super().__call__(*arguments, **how)
            lost = {"stop": StopReason.ENVIRONMENT_ERROR, "reward": 0.0}
            return [replace(t, **lost) if i % 2 else t for i, t in enumerate(done)]

    record, author = Events(), Author(one_keyword_each)
    strategy = p2o_of(SMALL)
    before = runner(strategy, Policy(), author, record)(1)
    assert before is not None
    assert len(before.texts) > 1
    strategy._pool = before
    assert runner(strategy, Failing(), author, record)(2) is before
    assert "environment error: the earlier hints stay" in record.of("notice")[-1]["text"]
