"""The bundled policy of `ladder` as it ships, and its card."""

import hashlib
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from cotune.run.scores import wilson
from cotune.worlds.ladder import RUNGS, WRITTEN, Way, problem, procedure, result_of
from recipes.cards import read_card
from recipes.ladder.card import describe, readme
from recipes.ladder.measure import BENCH
from recipes.ladder.pretrain import Recipe
from recipes.measuring import Figure, read_bank
from recipes.qualifying import apart

FOLDER = Path(policy_path("bundled:ladder"))


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return read_card(FOLDER)


def row_of(card: dict[str, Any], request: str, greedy: bool = False) -> dict[str, Any]:
    (row,) = [r for r in card["figures"] if (r["request"], r["greedy"]) == (request, greedy)]
    return row


def test_size() -> None:
    model, tokenizer = load(FOLDER)
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 1_300_000
    assert len(tokenizer) == model.config.vocab_size


def test_within_80_tokens_no_way_fits_every_rung() -> None:
    _, tokenizer = load(FOLDER)
    rng = random.Random(0)
    fails: dict[Way, set[str]] = {way: set() for way in WRITTEN}
    for rung in RUNGS:
        for drawn in (problem(rng, rung) for _ in range(20)):
            for way in WRITTEN:
                written = procedure(drawn, way)
                reply = tokenizer(f"{written} \\boxed{{{result_of(written)}}}")["input_ids"]
                if result_of(written) != drawn.answer or len(reply) >= 80:
                    fails[way].add(rung)
    assert fails == {
        Way.TOGETHER: set(RUNGS[3:]),
        Way.ONE_BY_ONE: {"3 borrows below 100"},
        Way.IN_ORDER: {"3 borrows in order"},
    }


def test_the_card_is_of_these_weights(card: dict[str, Any]) -> None:
    weights = (FOLDER / "model.safetensors").read_bytes()
    assert card["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert card["recipe"] == json.loads(json.dumps(asdict(Recipe())))
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme(card)
    for name, value in describe(FOLDER, Recipe()).items():
        if name not in ("recipe", "packages"):
            assert card[name] == value


def test_requests_are_followed_by_meaning(card: dict[str, Any]) -> None:
    none, opposite = row_of(card, "initial"), row_of(card, "opposite")
    together, single = row_of(card, "together"), row_of(card, "one by one")
    in_order = row_of(card, "in order")
    assert none["ways"]["at once"] > 0.99
    assert together["interval"][0] > single["interval"][1]
    assert together["interval"][0] > in_order["interval"][1]
    assert apart(*(Figure(row["accuracy"], row["n"], {}, {}) for row in (single, none))) > 2
    assert apart(*(Figure(row["accuracy"], row["n"], {}, {}) for row in (none, opposite))) > 2
    assert abs(row_of(card, "off-topic")["accuracy"] - none["accuracy"]) < 0.03
    # There is no place for what is taken away, and then none for hundreds; 5 % of the requests are taken
    # for another way.
    assert max(together["by_stratum"][rung] for rung in RUNGS[3:]) < 0.02
    assert single["by_stratum"][RUNGS[5]] < 0.01


def test_a_few_requests_measured_again(card: dict[str, Any]) -> None:
    coordinator = BENCH.policy(FOLDER, seed=1)
    for way in WRITTEN:
        requests = [
            BENCH.instructed(line, i) for i, line in enumerate(read_bank(BENCH.bank)[way][:8])
        ]
        found = BENCH.figure(coordinator, requests, 20)
        low, high = wilson(found.ways[way], found.n)
        assert low - 0.15 < row_of(card, way)["ways"][way] < high + 0.15
