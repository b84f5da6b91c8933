"""The bundled policy of `scaffold` and its card."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

import pytest

from cotune.policy.local_policy import load
from cotune.policy.policy_files import bundled_folder
from cotune.run.scores import wilson
from recipes.cards import read_card
from recipes.measuring import read_bank
from recipes.scaffold.card import describe, readme
from recipes.scaffold.measure import BENCH
from recipes.scaffold.pretrain import Recipe

FOLDER = bundled_folder("scaffold")


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return read_card(FOLDER)


def row_of(card: dict[str, Any], request: str, greedy: bool = False) -> dict[str, Any]:
    (row,) = [r for r in card["figures"] if (r["request"], r["greedy"]) == (request, greedy)]
    return row


def test_size() -> None:
    model, tokenizer = load(FOLDER)
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 2_000_000
    assert len(tokenizer) == model.config.vocab_size


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
    twice, once = row_of(card, "twice"), row_of(card, "once")
    assert none["ways"]["no search"] > 0.99
    assert twice["interval"][0] > once["interval"][1]
    assert once["interval"][0] > none["interval"][1]
    assert opposite["interval"][1] < none["interval"][0]
    assert abs(row_of(card, "off-topic")["accuracy"] - none["accuracy"]) < 0.03
    # Three hops do not fit two searches each.
    assert twice["by_stratum"]["3 hops"] < 0.02


def test_a_few_requests_measured_again(card: dict[str, Any]) -> None:
    coordinator = BENCH.policy(FOLDER, seed=1)
    for way in ("twice", "once"):
        lines = read_bank(BENCH.bank)[way][:4]
        found = BENCH.figure(
            coordinator, [BENCH.instructed(line, i) for i, line in enumerate(lines)], 20
        )
        low, high = wilson(found.ways[way], found.n)
        assert low - 0.2 < row_of(card, way)["ways"][way] < high + 0.2
