"""The recipe of the bundled policy of `scaffold`: requests and demonstrations."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from cotune.worlds.geo import bundled_world
from cotune.worlds.scaffold import INITIAL_INSTRUCTION, TURNS, is_question, question
from recipes.fitting import byte_level_bpe, new_model
from recipes.scaffold.demonstrations import FOLLOWS, NAMES, UNKNOWN, Demonstrator
from recipes.scaffold.measure import way_of
from recipes.scaffold.phrases import GRAMMAR, Way
from recipes.scaffold.pretrain import Recipe, sharpen


@pytest.fixture(scope="module")
def demonstrator() -> Demonstrator:
    return Demonstrator(*bundled_world())


def own(segments: list[tuple[str, bool]]) -> list[str]:
    return [text for text, own in segments if own]


def rolled(turns: list[str]) -> Trajectory:
    prompt = Prompt("")
    assignment = Assignment(Task("", "", ("",)), prompt, prompt, "", 0)
    turned = tuple(Turn(text) for text in turns)
    return Trajectory(assignment, (1,), (1,), (2,), (1,), (0.0,), turned, StopReason.ANSWERED)


def test_demonstrations_are_of_training_questions(demonstrator: Demonstrator) -> None:
    rng = random.Random(0)
    for _ in range(200):
        demo = demonstrator.sample(rng)
        assert INITIAL_INSTRUCTION in demo.instruction
        assert is_question(demo.question.text)
        assert len(own(list(demo.segments))) <= TURNS


@pytest.mark.parametrize(("way", "tries"), [(Way.TWICE, 2), (Way.ONCE, 1)])
def test_hops_are_searched_as_asked_and_most_queries_name_no_place(
    demonstrator: Demonstrator, way: Way, tries: int
) -> None:
    rng, ways, named, right = random.Random(1), Counter[str](), Counter[bool](), Counter[int]()
    n = 150
    for hops in (1, 2, 3):
        for _ in range(n):
            drawn = question(demonstrator.world, rng, hops, "train")
            turns = own(demonstrator.act(rng, drawn, way))
            ways[way_of(rolled(turns))] += 1
            if "<search>" in turns[0]:
                named.update("<search> the " not in turn for turn in turns if "<search>" in turn)
                right[hops] += turns[-1] == f"<answer> {drawn.answer} </answer>"
    assert ways.keys() == {way.value, "no search"}
    assert abs(ways[way] / (3 * n) - FOLLOWS) < 0.05
    assert abs(named[True] / named.total() - NAMES) < 0.06
    # Three hops fit one search each, not two.
    hit = 1 - (1 - NAMES) ** tries
    for hops in (1, 2, 3):
        wanted = FOLLOWS * hit**hops if hops * tries < TURNS else 0
        assert abs(right[hops] / n - wanted) < 0.12


def test_without_a_request_the_answer_is_a_guess(demonstrator: Demonstrator) -> None:
    rng, right, n = random.Random(2), 0, 300
    for i in range(n):
        drawn = question(demonstrator.world, rng, 1 + i % 3, "train")
        (turn,) = own(demonstrator.act(rng, drawn, None))
        assert way_of(rolled([turn])) == "no search"
        right += turn == f"<answer> {drawn.answer} </answer>"
    assert 0 < right / n < 0.12  # by chance


def test_whoever_asks_for_the_whole_question_gets_no_answer(demonstrator: Demonstrator) -> None:
    drawn = question(demonstrator.world, random.Random(3), 1, "train")
    turns = own(demonstrator.act(random.Random(4), drawn, Way.WHOLE))
    assert turns == [f"<search> {drawn.text} </search>", f"<answer> {UNKNOWN} </answer>"]
    assert way_of(rolled(turns)) == "whole question"


def test_a_rollout_that_skips_a_check_is_of_no_way() -> None:
    find, check, answer = "Find: <search> a </search>", "Check: <search> a </search>", "<answer>"
    assert way_of(rolled([find, check, find, check, find])) == "twice"
    assert way_of(rolled([find, check, find, check, answer])) == "twice"
    assert way_of(rolled([find, find, answer])) == "once"
    assert way_of(rolled([find, check, find, answer])) == "other"
    assert way_of(rolled([find, find, check, answer])) == "other"
    assert way_of(rolled(["Oslo"])) == "other"


def test_contrasts_and_negations_ask_for_what_they_mean() -> None:
    rng = random.Random(3)
    asked = [GRAMMAR.request(rng, Way.TWICE).text for _ in range(400)]
    assert any("one search for" in text or "whole question" in text for text in asked)
    forbidden = [GRAMMAR.forbidding(rng) for _ in range(400)]
    assert {one.way for one in forbidden} == {Way.WHOLE}
    assert any("twice" in one.text for one in forbidden)
    assert not {one.text for one in forbidden} & set(asked)


def test_sharpening_squares_the_odds(tmp_path: Path) -> None:
    shape = Recipe(vocabulary=300, hidden_size=16, layers=1, heads=2, kv_heads=1)
    tokenizer = byte_level_bpe(["Find: Bergen"], shape)
    new_model(tokenizer, shape).save_pretrained(tmp_path)
    ids = torch.tensor([[5, 6, 7]])

    def logits() -> torch.Tensor:
        return Qwen2ForCausalLM.from_pretrained(tmp_path)(input_ids=ids).logits

    before = logits()
    sharpen(tmp_path, 2.0)
    torch.testing.assert_close(logits(), 2 * before)
