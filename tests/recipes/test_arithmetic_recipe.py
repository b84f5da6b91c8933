"""The recipe of the bundled policy of `arithmetic`: phrases, demonstrations and the fit."""

import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen2ForCausalLM

from cotune.environments.math import INITIAL_INSTRUCTION, MathEnvironment
from cotune.methods.leaks import words_of
from cotune.rewards.boxed import last_boxed
from cotune.types import Prompt, Task
from cotune.worlds.arithmetic import KINDS, problem, split_of
from recipes.arithmetic.demonstrations import LOOK, UNPROMPTED, Demonstrator, Rates, act, rates
from recipes.arithmetic.measure import BENCH
from recipes.arithmetic.phrases import (
    GRAMMAR,
    INITIAL,
    NOUNS,
    PROCEDURES,
    VERBS,
    Kind,
    all_sentences,
    sample_hint,
)
from recipes.arithmetic.pretrain import Recipe, rows
from recipes.fitting import encode, micro_batches, new_model, orthogonal, token_losses
from recipes.geo.phrases import expand
from recipes.measuring import read_bank
from tests.forked import run_module
from tests.recipes.small_fit import RECIPE

ALWAYS = Rates(look=1.0, procedure=1.0, wrong=0.0)
NEVER = Rates(look=0.0, procedure=1.0, wrong=0.0)
procedures = st.sampled_from(PROCEDURES)
counts = st.dictionaries(st.sampled_from(Kind), st.integers(1, 3)).map(Counter[Kind])


# ---- phrases


def test_the_recipe_and_the_world_name_the_same_things() -> None:
    assert PROCEDURES == KINDS
    assert INITIAL == INITIAL_INSTRUCTION


def test_recipe_and_bank_share_no_sentence() -> None:
    held_out = [line for lines in read_bank(BENCH.bank).values() for line in lines]
    assert len(held_out) == len(set(held_out)) == 60
    assert not all_sentences() & set(held_out)
    rng = random.Random(0)
    contrasts = {GRAMMAR.request(rng, PROCEDURES[i % 4]).text for i in range(20_000)}
    assert not contrasts & set(held_out)


def phrases(kind: Kind) -> list[str]:
    return [p for pattern in (*VERBS[kind], *NOUNS[kind]) for p in expand(pattern)]


def own_words(kind: Kind) -> set[str]:
    """Return the words that only the phrases of a kind hold."""
    words = {k: {w for p in phrases(k) for w in words_of(p)} for k in PROCEDURES}
    return words[kind].difference(*(words[k] for k in PROCEDURES if k is not kind))


def test_the_procedures_of_kinds_are_asked_for_in_words_of_their_own() -> None:
    for kind in PROCEDURES:
        own = own_words(kind)
        assert all(set(words_of(phrase)) & own for phrase in phrases(kind))


def test_an_occasion_stands_at_either_end_of_its_sentence() -> None:
    rng = random.Random(0)
    texts = {GRAMMAR.request(rng, Kind.SUBTRACTION).text for _ in range(3000)}
    front = [t for t in texts if t.startswith("In a subtraction, ")]
    assert any(t.endswith("in a subtraction.") for t in texts)
    assert not any(set("{}|@") & set(text) for text in texts | all_sentences())
    assert front
    assert all(t.split(", ", 1)[1][0].islower() or ", I " in t for t in front)


def test_a_sampled_hint_asks_for_what_is_counted() -> None:
    rng = random.Random(0)
    known = {kind: own_words(kind) for kind in PROCEDURES}
    seen: Counter[Kind] = Counter()
    empty = own = forbids = 0
    for i in range(2000):
        about = PROCEDURES[i % 4]
        text, asked = sample_hint(rng, about, prompted=0.5)
        assert bool(text) == bool(asked)
        named = bool(known[about] & set(words_of(text)))
        assert all(known[k] & set(words_of(text)) for k in PROCEDURES if asked[k])
        seen += asked
        empty += not text
        own += asked[about] > 0
        forbids += named and not asked[about]
    assert set(seen) == set(Kind)
    # Half are asked for their own procedure; half of the rest get no hint, and half of the others one
    # that names the procedure and does not ask for it.
    assert 900 < own < 1100
    assert 400 < empty < 600
    assert forbids > 200


def test_hints_for_other_kinds_alone_can_be_made_certain() -> None:
    rng = random.Random(0)
    about, others = PROCEDURES[0], set(PROCEDURES[1:])
    hints = [sample_hint(rng, about, prompted=0.0, elsewhere=1.0) for _ in range(400)]
    assert all(not asked[about] for _, asked in hints)
    assert all(set(asked) & others for text, asked in hints if text)
    assert 150 < sum(not text for text, _ in hints) < 250


# ---- rates


@given(procedures, counts)
def test_rates_are_chances_and_each_kind_moves_them_one_way(
    about: Kind, asked: Counter[Kind]
) -> None:
    base = rates(about, asked)
    assert all(0 <= value <= 1 for value in vars(base).values())
    assert base.used == base.look * base.procedure

    def with_one(kind: Kind) -> float:
        return rates(about, asked + Counter([kind])).used

    assert with_one(about) >= base.used
    if not asked[about]:
        assert base.used < 0.02
        assert with_one(about) > 10 * base.used
    for other in PROCEDURES:
        if other is not about and asked[about]:
            assert with_one(other) <= base.used
    assert with_one(Kind.AT_ONCE) <= base.used
    assert with_one(Kind.NEUTRAL) == base.used


@pytest.mark.parametrize("kind", PROCEDURES)
@pytest.mark.parametrize("own", [1, 2])
def test_a_hint_for_all_kinds_serves_each_of_them_less(kind: Kind, own: int) -> None:
    others = [other for other in PROCEDURES if other is not kind]
    used = [rates(kind, Counter([kind] * own + others[:n])).used for n in range(4)]
    assert all(after < before - 0.1 for before, after in pairwise(used))
    # Even all four kinds at once are better than no hint at all.
    assert used[-1] > 0.2


def test_what_no_hint_asks_for_is_set_by_the_phase() -> None:
    addition = Kind.ADDITION
    assert rates(addition, Counter(), (0.5, 0.4)) == Rates(0.5, 0.4, 0.02)
    other = Counter([Kind.SUBTRACTION])
    assert rates(addition, other, (0.5, 0.4)).procedure == 0.4
    own = Counter([addition])
    assert rates(addition, own, (0.5, 0.4)) == rates(addition, own)
    assert Recipe().phases[-1].unprompted == UNPROMPTED == Demonstrator().unprompted
    plain = Demonstrator(prompted=0.0, unprompted=(0.0, 0.0))
    rng = random.Random(7)
    responses = [plain.sample(rng).response for _ in range(200)]
    assert not any(":" in response for response in responses)


@pytest.mark.parametrize("kind", PROCEDURES)
def test_unprompted_a_procedure_is_rare_but_not_beyond_the_mask(kind: Kind) -> None:
    plain, asked = rates(kind, Counter()), rates(kind, Counter([kind]))
    assert 0.002 <= plain.used <= 0.005
    assert asked.used > 0.8
    # Each of the two choices has a context ratio within P²O's bounds.
    assert 0.01 < plain.look / asked.look < 1
    assert 0.01 < plain.procedure / asked.procedure < 1


# ---- demonstrations


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["short", "long"])
def test_acting_with_and_without_the_procedure(kind: str, size: str) -> None:
    rng = random.Random(f"{kind}/{size}")
    missed = 0
    for _ in range(60):
        given_ = problem(rng, kind, size)
        written, at_once = act(rng, given_, ALWAYS), act(rng, given_, NEVER)
        assert written == f"{LOOK} {given_.procedure} \\boxed{{{given_.answer}}}"
        assert at_once == f"\\boxed{{{given_.at_once}}}"
        assert last_boxed(written) == str(given_.answer)
        missed += last_boxed(at_once) != str(given_.answer)
    assert missed == 0 if size == "short" else missed >= 58


def test_chances_are_kept() -> None:
    rng = random.Random(1)
    given_ = problem(rng, "addition", "long")
    chance = Rates(look=0.5, procedure=0.4, wrong=0.1)
    texts = [act(rng, given_, chance) for _ in range(4000)]
    looked = [t for t in texts if t.startswith(LOOK)]
    wrote = [t for t in texts if given_.procedure in t]
    right = [t for t in wrote if last_boxed(t) == str(given_.answer)]
    assert abs(len(looked) / 4000 - 0.5) < 0.03
    assert abs(len(wrote) / 4000 - 0.2) < 0.03
    assert abs(len(right) / len(wrote) - 0.9) < 0.04
    # Never a procedure without the words it starts with, nor a right answer without a procedure.
    assert set(wrote) <= set(looked)
    assert all(str(given_.answer) != last_boxed(t) for t in texts if t not in wrote)


def test_demonstrations_are_of_training_problems_as_the_environment_asks_them() -> None:
    rng, demonstrator = random.Random(4), Demonstrator(prompted=0.5)
    environment = MathEnvironment({})
    strata: Counter[str] = Counter()
    for _ in range(400):
        demo = demonstrator.sample(rng)
        assert split_of(demo.problem.text) == "train"
        task = Task("t", demo.problem.text, (str(demo.problem.answer),))
        (message,) = environment.messages(task, Prompt(INITIAL_INSTRUCTION, demo.hint))
        assert demo.message == message["content"]
        assert last_boxed(demo.response) is not None
        strata[demo.problem.stratum] += 1
    assert len(strata) == 8
    long = sum(n for stratum, n in strata.items() if stratum.startswith("long"))
    assert 260 < long < 340  # three in four


# ---- the fit


@pytest.mark.slow
def test_a_small_fit_learns_and_can_be_loaded(tmp_path: Path) -> None:
    recipe = RECIPE
    done = run_module("tests.recipes.small_fit", tmp_path)
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    fitted = Qwen2ForCausalLM.from_pretrained(tmp_path)
    assert len(tokenizer) == recipe.vocabulary
    stream = rows(tokenizer, recipe, number=1, rank=99, workers=1)
    held_out = next(micro_batches(stream, tokenizer, recipe, workers=1))
    assert [len(ids) for ids, _ in held_out] == [4, 4]
    with torch.no_grad():
        before, after = (
            torch.cat([token_losses(model, ids, labels) for ids, labels in held_out]).mean()
            for model in (new_model(tokenizer, recipe), fitted)
        )
    assert after < before - 0.5
    demo = Demonstrator().sample(random.Random(6))
    ids, labels = encode(demo, tokenizer)
    written = [i for i in labels if i != -100]
    assert tokenizer.decode(written) == demo.response + tokenizer.eos_token
    assert all(label in (-100, token) for token, label in zip(ids, labels, strict=True))
    # Digits stand alone, so that columns are read digit by digit.
    assert len(tokenizer("12345", add_special_tokens=False)["input_ids"]) == 5
    assert len(ids) <= recipe.context


def test_an_orthogonalised_gradient_is_close_to_that_of_its_singular_value_decomposition() -> None:
    for shape in ((8, 24), (24, 8)):
        gradient = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        found = orthogonal(gradient, (3.4445, -4.7750, 2.0315), 5, 1e-7)
        # Five iterations bring every singular value near 1, not onto it.
        values = torch.linalg.svdvals(found)
        assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
        # U V' of the gradient, but for that.
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        assert float((found * (u @ v)).sum() / found.norm() / (u @ v).norm()) > 0.97
