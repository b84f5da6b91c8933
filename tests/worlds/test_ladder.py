import itertools
import random

import pytest

from cotune.methods.inspo.proposers import (
    crossover_prompt,
    paraphrase_prompt,
    parse_candidates,
    reflection_prompt,
)
from cotune.methods.inspo.replay import Experience
from cotune.types import StopReason, Task
from cotune.worlds.ladder import (
    LARGEST,
    RUNGS,
    SHARES,
    WRITTEN,
    LadderEnvironment,
    LadderOptions,
    Problem,
    Way,
    after,
    problem,
    procedure,
    result_of,
    split_of,
)
from cotune.worlds.ladder_rules import REMEDIES, STYLE, Lack, lacks
from cotune.worlds.rules_llm import RulesLLM
from recipes.ladder.measure import BENCH
from recipes.ladder.phrases import INITIAL, all_sentences
from recipes.measuring import read_bank

MIXED = Problem(RUNGS[3], 59, (6, -8, -9, 8, -7), "What is 59 + 6 - 8 - 9 + 8 - 7?")
OVER = Problem(RUNGS[4], 88, (4, -8, -8, 9, -6), "What is 88 + 4 - 8 - 8 + 9 - 6?")


def test_procedures_by_hand() -> None:
    assert MIXED.answer == 49
    # No place for what is taken away.
    assert procedure(MIXED, Way.TOGETHER) == "Together: 6+8=14; 59+14: 3 up 73;"
    assert procedure(MIXED, Way.ONE_BY_ONE) == (
        "One by one: 59+6: 5 up 65; 65+8: 3 up 73; 8+9+7=24; 73-24: down 9 49;"
    )
    assert procedure(MIXED, Way.IN_ORDER) == (
        "In order: 59+6: 5 up 65; 65-8: down 7 57; 57-9: down 8 48; 48+8: 6 up 56; 56-7: down 9 49;"
    )
    # No place for hundreds.
    written = procedure(OVER, Way.ONE_BY_ONE)
    assert written == "One by one: 88+4: 2 up 92; 92+9: 1 up over;"
    assert result_of(written) == LARGEST
    assert result_of(procedure(OVER, Way.IN_ORDER)) == OVER.answer == 79


def test_slips_by_hand() -> None:
    assert (after(59, 6, True), after(59, 6, False)) == (65, 55)
    assert (after(65, -8, True), after(65, -8, False)) == (57, 63)  # 8 - 5 in place of 15 - 8
    assert (after(73, -24, True), after(73, -24, False)) == (49, 51)
    assert after(61, 7, False) == 68  # nothing to forget
    forgetful = procedure(MIXED, Way.IN_ORDER, iter([False, True, False, True, False]))
    assert (
        forgetful == "In order: 59+6: 5 55; 55-8: down 7 47; 47-9: 2 42; 42+8: 0 up 50; 50-7: 7 57;"
    )


@pytest.mark.parametrize("story", [False, True])
@pytest.mark.parametrize("rung", RUNGS)
def test_a_right_answer_tells_that_nothing_was_forgotten(rung: str, story: bool) -> None:
    rng = random.Random(rung)
    carries = {RUNGS[0]: 0, RUNGS[1]: 3, RUNGS[2]: 5}.get(rung, 2)
    borrows = 3 * (rung in RUNGS[3:])
    solved = {
        Way.TOGETHER: rung in RUNGS[:3], Way.ONE_BY_ONE: rung != RUNGS[4], Way.IN_ORDER: True
    }  # fmt: skip
    for _ in range(40):
        drawn = problem(rng, rung, story)
        assert ("How many" in drawn.text) == story
        assert (drawn.at_once == drawn.answer) == (rung == RUNGS[0])
        in_order, single = procedure(drawn, Way.IN_ORDER), procedure(drawn, Way.ONE_BY_ONE)
        assert (in_order.count(" up "), in_order.count(" down ")) == (carries, borrows)
        if rung == RUNGS[3]:
            assert (single.count(" up "), single.count(" down ")) == (2, 1)
        for way in WRITTEN:
            assert (result_of(procedure(drawn, way)) == drawn.answer) == solved[way]
            places = procedure(drawn, way).count("up") + procedure(drawn, way).count("down")
            for pattern in itertools.product((True, False), repeat=5):
                if not all(pattern[:places]):
                    written = procedure(drawn, way, iter(pattern))
                    assert result_of(written) != drawn.answer


def test_splits_are_disjoint_and_mixed_as_said() -> None:
    environment = LadderEnvironment(LadderOptions(stories=0.25))
    tasks = {split: environment.tasks(split) for split in ("train", "validation", "test")}
    for split, rows in tasks.items():
        assert {split_of(task.question) for task in rows} == {split}
        assert len({task.question for task in rows}) == len(rows)
    counts = [sum(t.stratum == rung for t in tasks["train"]) for rung in RUNGS]
    assert counts == [480 * share // 20 for share in SHARES]
    assert sum("story" in t.stratum for t in tasks["test"]) == 100
    assert {t.stratum for t in tasks["test"][:20]} == set(RUNGS)


# ---- what is written about it


def test_recipe_bank_and_rules_share_no_sentence() -> None:
    recipe = all_sentences()
    held_out = {line for lines in read_bank(BENCH.bank).values() for line in lines}
    rules = {s for options in REMEDIES.values() for s in options} | set(STYLE)
    assert len(held_out) == 100
    assert not recipe & held_out
    assert not recipe & rules
    assert not held_out & rules


AT_ONCE = "\\boxed{48}"
GROUPED, SINGLE = (procedure(MIXED, way) for way in (Way.TOGETHER, Way.ONE_BY_ONE))


def test_the_rules_read_what_a_failed_response_lacks() -> None:
    assert lacks(AT_ONCE) == list(Lack)
    assert lacks(GROUPED) == [Lack.LINE_PER_NUMBER, Lack.WRITTEN_ORDER]
    assert lacks(SINGLE) == [Lack.FEWER_LINES, Lack.WRITTEN_ORDER]


@pytest.mark.parametrize(("response", "found"), [(GROUPED, lacks(GROUPED)), (AT_ONCE, list(Lack))])
def test_the_rules_answer_a_reflection_with_one_remedy(response: str, found: list[Lack]) -> None:
    task = Task("a", MIXED.text, (str(MIXED.answer),))
    failure = Experience("i0", task, response, 0.0, 1, StopReason.ANSWERED)
    parent = f"{INITIAL} {REMEDIES[Lack.FEWER_LINES][0]}"
    seen = set[Lack]()
    for seed in range(8):
        reply = RulesLLM(seed).complete(reflection_prompt(parent, [failure], 6)).text
        for candidate in parse_candidates(reply):
            held = [lack for lack in Lack if any(s in candidate for s in REMEDIES[lack])]
            assert len(held) == 1
            assert INITIAL.split(". ")[1] in candidate
            seen |= set(held)
    assert seen == set(found)


def test_crossover_keeps_the_protocol_and_one_remedy() -> None:
    few, single = REMEDIES[Lack.FEWER_LINES][0], REMEDIES[Lack.LINE_PER_NUMBER][0]
    pair = [(f"{INITIAL} {few} {STYLE[0]}", 20.0), (f"{single} {INITIAL}", 60.0)]
    seen = set[str]()
    for seed in range(5):
        reply = RulesLLM(seed).complete(crossover_prompt(pair, INITIAL, 6)).text
        for candidate in parse_candidates(reply):
            assert INITIAL in candidate
            held = [s for s in (few, single) if s in candidate]
            assert len(held) == 1
            seen |= set(held)
    assert seen == {few, single}


def test_rewrites_remedy_nothing() -> None:
    candidates = parse_candidates(RulesLLM(0).complete(paraphrase_prompt(INITIAL, 6)).text)
    assert len(candidates) > 3
    for candidate in candidates:
        assert INITIAL in candidate
        assert not any(s in candidate for options in REMEDIES.values() for s in options)
