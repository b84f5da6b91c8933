import random
from collections import Counter

import pytest

from cotune.environments.tag_protocol import ANSWER_TAGS, render_information
from cotune.methods.inspo.proposers import (
    crossover_prompt,
    paraphrase_prompt,
    parse_candidates,
    reflection_prompt,
)
from cotune.methods.inspo.replay import Experience
from cotune.types import Action, StopReason, Task, Turn
from cotune.worlds.geo import STRATA, bundled_world, split_of
from cotune.worlds.ladder_rules import REMEDIES as LADDER
from cotune.worlds.rules_llm import RulesLLM
from cotune.worlds.scaffold import (
    ANSWER_INSTRUCTION,
    INITIAL_INSTRUCTION,
    TURNS,
    ScaffoldEnvironment,
    ScaffoldOptions,
    is_question,
    question,
)
from cotune.worlds.scaffold_rules import REMEDIES, STYLE, Lack, lacks
from recipes.measuring import read_bank
from recipes.scaffold.measure import BENCH
from recipes.scaffold.phrases import GRAMMAR


@pytest.fixture(scope="module")
def environment() -> ScaffoldEnvironment:
    return ScaffoldEnvironment(ScaffoldOptions(train=60, validation=20, test=40))


def test_splits_are_disjoint_and_mixed_as_said(environment: ScaffoldEnvironment) -> None:
    for split, size in (("train", 60), ("validation", 20), ("test", 40)):
        tasks = environment.tasks(split)
        assert len({task.question for task in tasks}) == len(tasks) == size
        assert {split_of(task.question.split(":")[0]) for task in tasks} == {split}
        assert all(is_question(task.question) for task in tasks)
        counts = Counter(task.stratum for task in tasks)
        assert [counts[name] for name in STRATA.values()] == [
            size // 4,
            7 * size // 20,
            2 * size // 5,
        ]
        assert {task.stratum for task in tasks[:10]} == set(STRATA.values())
    assert not is_question("What is the population of Oslo?")  # geo's


def test_an_answer_is_not_told_by_the_first_document() -> None:
    world, _ = bundled_world()
    rng = random.Random(0)
    for hops in (2, 3):
        for _ in range(100):
            drawn = question(world, rng, hops, "test")
            assert drawn.hops == hops
            assert drawn.answer not in world.document(drawn.chain[0].entity)


def test_the_fifth_turn_is_the_last(environment: ScaffoldEnvironment) -> None:
    task = environment.tasks("train")[0]
    text = "Find: <search> Oslo population </search>"
    (shown,) = environment.respond([Action(task, (Turn(text),) * (TURNS - 2), text, False)])
    assert shown.observation == render_information([environment.world.document("Oslo")])
    assert not shown.done
    (ended,) = environment.respond([Action(task, (Turn(text),) * (TURNS - 1), text, False)])
    assert ended.done
    assert not ended.observation


def test_without_search_the_same_questions_are_answered_at_once(
    environment: ScaffoldEnvironment,
) -> None:
    alone = ScaffoldEnvironment(ScaffoldOptions(train=60, validation=20, test=40, search=False))
    assert alone.tasks("train") == environment.tasks("train")
    assert (alone.initial_instruction, alone.required) == (ANSWER_INSTRUCTION, ANSWER_TAGS)
    action = Action(alone.tasks("train")[0], (), "<search> Oslo </search>", False)
    assert [e.respond([action])[0].action for e in (environment, alone)] == ["search", "invalid"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"train": 0}, "environment.train is 0"), ({"mix": {4: 1.0}}, "expected hops 1, 2 or 3")],
)
def test_options_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScaffoldOptions(**fields)  # pyright: ignore[reportArgumentType]


# ---- what is written about it


def test_recipe_bank_and_rules_share_no_sentence() -> None:
    recipe = GRAMMAR.all_sentences()
    sections = read_bank(BENCH.bank)
    held_out = {line for lines in sections.values() for line in lines}
    rules = {s for options in REMEDIES.values() for s in options} | set(STYLE)
    assert {name: len(lines) for name, lines in sections.items()} == {
        "twice": 24, "once": 24, "opposite": 12, "off-topic": 12,
    }  # fmt: skip
    assert len(held_out) == 72
    assert not recipe & held_out
    assert not recipe & rules
    assert not held_out & rules


WHOLE, ONCE, TWICE = (
    "<search> Oslo: what is the population? </search>",
    "Find: <search> the city population </search>",
    "Find: <search> the city population </search>\nCheck: <search> the city population </search>",
)
ASKED = "Bergen: what is the population of the capital of its country?"


@pytest.mark.parametrize(
    ("response", "found"),
    [(WHOLE, set(Lack)), (ONCE, {Lack.CHECKS}), (TWICE, {Lack.TURNS})],
)
def test_the_rules_answer_a_reflection_with_one_remedy(response: str, found: set[Lack]) -> None:
    assert set(lacks(response)) == found
    failure = Experience("i0", Task("a", ASKED, ("1",)), response, 0.0, 1, StopReason.ANSWERED)
    parent = f"{INITIAL_INSTRUCTION} {REMEDIES[Lack.TURNS][0]}"
    seen = set[Lack]()
    for seed in range(6):
        reply = RulesLLM(seed).complete(reflection_prompt(parent, [failure], 6)).text
        for candidate in parse_candidates(reply):
            held = [lack for lack in Lack if any(s in candidate for s in REMEDIES[lack])]
            assert len(held) == 1
            assert INITIAL_INSTRUCTION in candidate
            assert not any(s in candidate for options in LADDER.values() for s in options)
            seen |= set(held)
    assert seen == found


def test_crossover_keeps_the_protocol_and_one_remedy() -> None:
    twice, once = REMEDIES[Lack.CHECKS][0], REMEDIES[Lack.TURNS][0]
    pair = [
        (f"{INITIAL_INSTRUCTION} {twice} {STYLE[0]}", 20.0),
        (f"{once} {INITIAL_INSTRUCTION}", 60.0),
    ]
    seen = set[str]()
    for seed in range(5):
        reply = RulesLLM(seed).complete(crossover_prompt(pair, INITIAL_INSTRUCTION, 6)).text
        for candidate in parse_candidates(reply):
            assert INITIAL_INSTRUCTION in candidate
            held = [s for s in (twice, once) if s in candidate]
            assert len(held) == 1
            seen |= set(held)
    assert seen == {twice, once}


def test_rewrites_remedy_nothing() -> None:
    prompt = paraphrase_prompt(INITIAL_INSTRUCTION, 6)
    candidates = parse_candidates(RulesLLM(0).complete(prompt).text)
    assert len(candidates) > 3
    for candidate in candidates:
        assert INITIAL_INSTRUCTION in candidate
        assert not any(s in candidate for options in REMEDIES.values() for s in options)
