"""Fixed hints and the controls of a claim about hints."""

from dataclasses import replace
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.methods.method import Context, RunShape
from cotune.methods.p2o import p2o
from cotune.methods.p2o.hint_draws import HintDraws, check_lengths, random_text
from cotune.methods.p2o.hints import HintPool
from cotune.methods.p2o.p2o import P2OOptions
from cotune.types import Task
from tests.methods.p2o.p2o_run import EASY, GROUP, HARD, Run, hints

FIXED = {"sum": ["mind the columns", "add columns"], "unit": ["use the conversion"]}
A, B, C = (Task(name, f"{name}?", ("1",), stratum) for name, stratum in [
    ("a", "sum"), ("b", "unit"), ("c", "word"),
])  # fmt: skip
# The first hint solves a, the second b; the second was derived from c.
POOL = HintPool(
    ("", "for a", "for b"), ("a", "b"), ((0, 0), (1, 0), (0, 1)),
    (frozenset(), frozenset(), frozenset({"c"})),
)  # fmt: skip


def drawn(count: int = 20, tasks: Any = (A, B, C), **fields: Any) -> dict[str, set[str]]:
    found = HintDraws(**fields).draw(tasks, (A, B, C), count, "key")
    assert all(len(texts) == count for texts in found.values())
    return {id: set(texts) for id, texts in found.items()}


def test_fixed_hints_are_those_of_a_questions_stratum() -> None:
    assert drawn(fixed=FIXED) == {"a": set(FIXED["sum"]), "b": set(FIXED["unit"])}
    assert drawn(fixed={**FIXED, "": ["think"]})["c"] == {"think"}


def test_other_hints_are_those_that_a_question_would_not_get() -> None:
    assert drawn(fixed=FIXED, given="other") == {
        "a": set(FIXED["unit"]),
        "b": set(FIXED["sum"]),
        "c": {*FIXED["sum"], *FIXED["unit"]},
    }
    assert drawn(pool=POOL) == {"a": {"for a"}, "b": {"for b"}, "c": {"for a"}}
    # Nothing is left for c: one hint is its own, the other was derived from it.
    assert drawn(pool=POOL, given="other") == {"a": {"for b"}, "b": {"for a"}}


@pytest.mark.parametrize("source", [{"fixed": FIXED}, {"pool": POOL}])
def test_random_text_is_as_long_as_the_hint_in_its_place(source: Any) -> None:
    own = HintDraws(**source).draw((A, B), (A, B), GROUP, "key")
    other = HintDraws(**source, given="random").draw((A, B), (A, B), GROUP, "key")
    assert own.keys() == other.keys()
    for id, texts in own.items():
        assert [len(t) for t in other[id]] == [len(t) for t in texts]
        assert len(set(other[id])) > 1
    words = {w for texts in own.values() for text in texts for w in text.split()}
    said = " ".join(text for texts in other.values() for text in texts)
    assert not words & set(said.replace(".", "").split()) - {"a"}
    assert random_text(0, "key") == ""


def test_no_hints_are_none() -> None:
    assert drawn(fixed=FIXED, given="none") == drawn(pool=POOL, given="none") == drawn() == {}


@pytest.mark.parametrize("given", ["own", "other", "random"])
def test_draws_depend_on_the_question_and_may_be_one_for_a_group(given: Any) -> None:
    draws = HintDraws(given, fixed=FIXED)
    both, alone = (draws.draw(tasks, (A, B), 8, "key") for tasks in ((A, B), (B,)))
    assert alone["b"] == both["b"]
    one = HintDraws(given, same=True, fixed=FIXED).draw((A, B), (A, B), 8, "key")
    assert all(len(set(texts)) == 1 for texts in one.values())


def test_hard_questions_alone_get_fixed_hints_and_nothing_evolves() -> None:
    run = Run(fixed_hints=FIXED)
    assert set(hints(run.batch(0)).values()) == {("",) * GROUP}
    second = hints(run.batch(1))
    assert all(set(second[t.id]) <= set(FIXED[t.stratum]) for t in HARD)
    assert all(second[t.id] == ("",) * GROUP for t in EASY)
    assert run.policy.calls == []
    assert [event["hard"] for event in run.events.of("hard_samples")] == [len(HARD)]
    shape = RunShape(steps=100, questions=500, questions_per_step=50, group_size=6)
    assert p2o.cost(P2OOptions(fixed_hints=FIXED), shape).rollouts == {"evolve": 0}


def test_no_hints_cost_what_hints_do() -> None:
    """The phases of a run whose questions get no hint are those of one whose questions do."""
    without, having = Run(given="none"), Run()
    for run in (without, having):
        run.batch(0)
    assert set(hints(without.batch(1)).values()) == {("",) * GROUP}
    having.batch(1)
    assert without.policy.evaluations == having.policy.evaluations > 0


def test_fixed_hints_without_any_are_refused() -> None:
    with pytest.raises(ValueError, match="fixed_hints has no hint"):
        P2OOptions(fixed_hints={"sum": []})


def test_fixed_hints_for_a_stratum_that_no_question_has_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="fixed_hints has 'sums', the stratum of no training question"
    ):
        Run(fixed_hints={"sums": ["Carry."], "": ["Check."]})


def test_a_fixed_hint_fits_into_the_prompt() -> None:
    context = Context(
        instruction="", tasks=(A,), seed=1, count_tokens=lambda text: len(text.split())
    )
    hint = {"": ["one two three"]}
    check_lengths(hint, replace(context, max_tokens=3))
    with pytest.raises(
        ConfigError, match="a hint of 3 tokens for '', but the prompt has room for 2"
    ):
        check_lengths(hint, replace(context, max_tokens=2))
