"""The recipe of the bundled policy: phrases, demonstrations and the fit."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen2ForCausalLM

from cotune.environments.tag_protocol import own_answer, parse_turn
from cotune.rewards import exact_match
from cotune.worlds.geo import bundled_world, split_of
from recipes import fitting
from recipes.fitting import micro_batches, new_model, token_losses
from recipes.geo.demonstrations import Demonstrator, Rates, rates
from recipes.geo.phrases import INITIAL, PATTERNS, SENTENCES, Kind, expand, sample_instruction
from recipes.geo.pretrain import Phase, Recipe, encode, pretrain, rows

ALWAYS_RIGHT = Rates(decompose=1.0, plan=1.0, wrong_answer=0.0, answer_tag=1.0)
counts = st.dictionaries(st.sampled_from(Kind), st.integers(1, 4)).map(Counter[Kind])


@pytest.fixture(scope="module")
def demonstrator() -> Demonstrator:
    return Demonstrator(*bundled_world())


def test_a_pattern_stands_for_every_choice() -> None:
    assert expand("{A|B} c {d|e|f}.") == [
        "A c d.",
        "A c e.",
        "A c f.",
        "B c d.",
        "B c e.",
        "B c f.",
    ]
    assert expand("Plain.") == ["Plain."]


def test_every_sentence_belongs_to_one_kind() -> None:
    kinds = Counter(
        sentence
        for patterns in SENTENCES.values()
        for sentence in {s for options in patterns for s in options}
    )
    assert [sentence for sentence, n in kinds.items() if n > 1] == []
    assert all(s.endswith(".") and not set("{}|") & set(s) for s in kinds)
    assert {k: len(v) for k, v in SENTENCES.items()} == {k: len(v) for k, v in PATTERNS.items()}


def test_sampled_instructions_hold_what_is_counted() -> None:
    rng = random.Random(0)
    known = {s: k for k, patterns in SENTENCES.items() for options in patterns for s in options}
    known |= {sentence: kind for kind, sentence in INITIAL}
    seen: Counter[Kind] = Counter()
    for _ in range(200):
        text, kinds = sample_instruction(rng)
        held = [s for s in known if s in text]
        assert set(kinds) <= {known[s] for s in held}
        seen += kinds
    assert set(seen) == set(Kind)


@given(counts)
def test_rates_are_chances_and_each_kind_moves_them_one_way(kinds: Counter[Kind]) -> None:
    base = rates(kinds)
    assert all(0 <= value <= 1 for value in vars(base).values())

    def with_one(kind: Kind) -> Rates:
        return rates(kinds + Counter([kind]))

    assert with_one(Kind.DECOMPOSE).decompose >= base.decompose
    assert with_one(Kind.PLAN).decompose >= base.decompose
    assert with_one(Kind.PLAN).plan >= base.plan
    assert with_one(Kind.PLAN).wrong_answer <= base.wrong_answer
    assert with_one(Kind.EVIDENCE).wrong_answer <= base.wrong_answer
    assert with_one(Kind.ANSWER_TAG).answer_tag >= base.answer_tag
    assert with_one(Kind.BROAD).decompose <= base.decompose
    assert with_one(Kind.MEMORY).wrong_answer >= base.wrong_answer
    assert with_one(Kind.NEUTRAL) == base


def turns(segments: list[tuple[str, bool]]) -> list[str]:
    return [text for text, own in segments if own]


def test_a_faithful_demonstration_earns_the_reward(demonstrator: Demonstrator) -> None:
    rng = random.Random(1)
    earned = 0
    for i in range(60):
        question = demonstrator.world.question(rng, 1 + i % 3, "train")
        segments = demonstrator.act(rng, question, ALWAYS_RIGHT)
        own = turns(segments)
        searches = [p.argument for p in map(parse_turn, own) if p.action == "search"]
        assert [own for _, own in segments] == [True, False] * len(searches) + [True]
        assert searches == [hop.entity for hop in question.chain][: len(searches)]
        earned += exact_match(own_answer(own), (question.answer,)) == 1.0
    assert earned >= 57  # BM25 misses an entity now and then


def test_a_broad_demonstration_searches_the_question_once(demonstrator: Demonstrator) -> None:
    rng = random.Random(2)
    chance = Rates(decompose=0.0, plan=0.0, wrong_answer=0.0, answer_tag=1.0)
    earned = 0
    for _ in range(40):
        question = demonstrator.world.question(rng, 3, "train")
        own = turns(demonstrator.act(rng, question, chance))
        assert len(own) == 2
        assert parse_turn(own[0]).argument in question.text
        earned += exact_match(own_answer(own), (question.answer,)) == 1.0
    assert earned <= 10


def test_without_its_tag_an_answer_earns_nothing(demonstrator: Demonstrator) -> None:
    rng = random.Random(3)
    question = demonstrator.world.question(rng, 1, "train")
    chance = Rates(decompose=1.0, plan=0.0, wrong_answer=0.0, answer_tag=0.0)
    own = turns(demonstrator.act(rng, question, chance))
    assert question.answer in own[-1]
    assert own_answer(own) is None


def test_demonstrations_ask_of_training_cities_alone(demonstrator: Demonstrator) -> None:
    rng = random.Random(4)
    for _ in range(100):
        assert split_of(demonstrator.sample(rng).question.chain[0].entity) == "train"


def test_made_up_names_leave_the_instruction_alone(demonstrator: Demonstrator) -> None:
    rng = random.Random(5)
    demo = demonstrator.sample(rng)
    city = demo.question.chain[0].entity
    renamed = demo.rename({city: "Zorbel"})
    assert renamed.instruction == demo.instruction
    assert city not in renamed.question.text
    assert "Zorbel" in renamed.question.text or city not in demo.question.text
    assert all(city not in text for text, _own in renamed.segments)


@pytest.mark.slow
def test_a_small_fit_learns_and_can_be_loaded(
    tmp_path: Path, demonstrator: Demonstrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process; that of arithmetic starts one for each phase.
    monkeypatch.setattr(fitting, "spawn", lambda work, arguments, nprocs: work(0, *arguments))
    recipe = Recipe(
        vocabulary=512,
        tokenizer_demonstrations=400,
        hidden_size=32,
        layers=1,
        heads=2,
        kv_heads=1,
        phases=(Phase(25, 1.0, (0.5, 0.5)), Phase(10, 0.5, (0.0, 0.0))),
        batch=8,
        micro_batches=2,
        warm_up=5,
    )
    pretrain(tmp_path, recipe, workers=1)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    fitted = Qwen2ForCausalLM.from_pretrained(tmp_path)
    assert len(tokenizer) == recipe.vocabulary
    stream = rows(tokenizer, recipe, number=0, rank=99, workers=1)
    held_out = next(micro_batches(stream, tokenizer, recipe, workers=1))
    with torch.no_grad():
        before, after = (
            torch.cat([token_losses(model, ids, labels) for ids, labels in held_out]).mean()
            for model in (new_model(tokenizer, recipe), fitted)
        )
    assert after < before - 0.5
    demo = demonstrator.sample(random.Random(6))
    ids, labels = encode(demo, tokenizer)
    own = "".join(text for text, own in demo.segments if own)
    assert tokenizer.decode([i for i in labels if i != -100]) == own + tokenizer.eos_token
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
