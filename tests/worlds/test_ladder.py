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
    RUNGS,
    SHARES,
    LadderEnvironment,
    LadderOptions,
    Problem,
    one_by_one,
    problem,
    result_of,
    split_of,
    together,
)
from cotune.worlds.ladder_rules import REMEDIES, STYLE, Lack, lacks
from cotune.worlds.rules_llm import RulesLLM
from recipes.ladder.measure import bank
from recipes.ladder.phrases import INITIAL, all_sentences

LONG = Problem(RUNGS[3], 47, (8, 6, 9, 7, 5), 4, "What is 47 + 8 + 6 + 9 + 7 + 5 - 4?")


def test_procedures_by_hand() -> None:
    assert LONG.answer == 78
    assert one_by_one(LONG) == (
        "One by one: 47+8: 5 up 55; 55+6: 1 up 61; 61+9: 0 up 70; 70+7: 7 77; 77+5: 2 up 82; "
        "82-4: 8 down 78;"
    )
    assert together(LONG) == "Together: 8+6+9=23; 47+23: 0 up 70; 7+5=12; 70+12: 2 82;"
    assert result_of(together(LONG)) == LONG.answer + LONG.taken  # no place for what is taken away
    short = Problem(RUNGS[1], 47, (8, 6), 4, "")
    assert one_by_one(short, iter([False, True, False])).endswith("45+6: 1 up 51; 51-4: 7 57;")


@pytest.mark.parametrize("story", [False, True])
@pytest.mark.parametrize("rung", RUNGS)
def test_problems_are_what_their_rung_says(rung: str, story: bool) -> None:
    rng = random.Random(rung)
    carries = 0 if rung == RUNGS[0] else int(rung[0])
    for _ in range(200):
        drawn = problem(rng, rung, story)
        written = one_by_one(drawn)
        assert written.count(" up ") == carries
        assert written.count(" down ") == (rung == RUNGS[3])
        assert result_of(written) == drawn.answer
        assert together(drawn).count(" up ") == min(carries, 2 - (carries == 3))
        assert result_of(together(drawn)) == drawn.answer + drawn.taken
        assert (drawn.at_once == drawn.answer) == (carries == 0)
        assert str(drawn.first) in drawn.text
        assert ("How many" in drawn.text) == story


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
    held_out = {line for lines in bank().values() for line in lines}
    rules = {s for options in REMEDIES.values() for s in options} | set(STYLE)
    assert len(held_out) == 72
    assert not recipe & held_out
    assert not recipe & rules
    assert not held_out & rules


AT_ONCE, GROUPED, SINGLE = (
    "\\boxed{48}",
    f"{together(LONG)} \\boxed{{82}}",
    "One by one: 47+8: 5 45;",
)


def test_the_rules_read_what_a_failed_response_lacks() -> None:
    assert lacks(AT_ONCE) == list(Lack)
    assert lacks(GROUPED) == [Lack.LINE_PER_NUMBER]
    assert lacks(SINGLE) == [Lack.FEWER_LINES]


@pytest.mark.parametrize(
    ("response", "found"), [(GROUPED, {Lack.LINE_PER_NUMBER}), (AT_ONCE, set(Lack))]
)
def test_the_rules_answer_a_reflection_with_one_remedy(response: str, found: set[Lack]) -> None:
    task = Task("a", LONG.text, (str(LONG.answer),))
    failure = Experience("i0", task, response, 0.0, 1, StopReason.ANSWERED)
    parent = f"{INITIAL} {REMEDIES[Lack.FEWER_LINES][0]}"
    seen = set[Lack]()
    for seed in range(6):
        reply = RulesLLM(seed).complete(reflection_prompt(parent, [failure], 6)).text
        for candidate in parse_candidates(reply):
            held = [lack for lack in Lack if any(s in candidate for s in REMEDIES[lack])]
            assert len(held) == 1
            assert INITIAL.split(". ")[1] in candidate
            seen |= set(held)
    assert seen == found


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
