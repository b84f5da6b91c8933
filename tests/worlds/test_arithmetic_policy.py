"""The bundled policy of `arithmetic` as it ships, and its card."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from cotune.worlds.arithmetic import HARD
from recipes.arithmetic.card import ROWS, HintKind, describe, measure, readme
from recipes.arithmetic.measure import BENCH
from recipes.arithmetic.phrases import PROCEDURES
from recipes.arithmetic.pretrain import Recipe
from recipes.cards import read_card
from recipes.measuring import read_bank

FOLDER = Path(policy_path("bundled:arithmetic"))


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return read_card(FOLDER)


def row_of(card: dict[str, Any], kind: HintKind) -> dict[str, Any]:
    (row,) = [r for r in card["figures"] if (r["hint"], r["wording"]) == (kind.name, kind.wording)]
    return row


def hard(row: dict[str, Any]) -> float:
    return sum(row["by_stratum"][stratum]["accuracy"] for stratum in HARD) / len(HARD)


def test_size() -> None:
    model, tokenizer = load(FOLDER)
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.tokenize("12345") == list("12345")


def test_the_card_is_of_these_weights(card: dict[str, Any]) -> None:
    weights = (FOLDER / "model.safetensors").read_bytes()
    assert card["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert card["recipe"] == json.loads(json.dumps(asdict(Recipe())))
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme(card)
    for name, value in describe(FOLDER, Recipe()).items():
        if name not in ("recipe", "packages"):
            assert card[name] == value


def test_the_world_is_what_the_method_needs(card: dict[str, Any]) -> None:
    none, own = row_of(card, HintKind()), row_of(card, HintKind(own=True, wording="unseen"))
    # Hard in the paper's sense: procedures are known, help, and are not used unprompted.
    assert 0.001 <= none["procedures"] <= 0.006
    assert hard(none) < 0.01
    assert hard(own) > 0.5
    # One hint does not cover all kinds.
    assert hard(row_of(card, HintKind(others=1, wording="unseen"))) < 0.05
    assert hard(row_of(card, HintKind(own=True, others=3, wording="unseen"))) < hard(own) - 0.2
    # Sentences that the recipe never showed work like its own.
    assert abs(hard(own) - hard(row_of(card, HintKind(own=True)))) < 0.15


@pytest.mark.parametrize("kind", [ROWS[0], HintKind(own=True, wording="unseen")], ids=str)
def test_figures_can_be_measured_again(card: dict[str, Any], kind: HintKind) -> None:
    score, _used = measure(FOLDER, kind, problems=48, seeds=(11,))
    expected = row_of(card, kind)["accuracy"]
    # Four standard deviations of 48 problems.
    assert abs(score.em - expected) < 4 * (expected * (1 - expected) / 48) ** 0.5


def test_hints_are_followed_by_meaning() -> None:
    coordinator, bank = BENCH.policy(FOLDER, seed=1), read_bank(BENCH.bank)

    def written(*sections: str) -> float:
        lines = [line for section in sections for line in bank[section]]
        texts = [BENCH.instructed(line, i) for i, line in enumerate(lines)]
        return BENCH.figure(coordinator, texts, 8).ways["written"]

    # A hint asks for the procedure of a quarter of the problems; an opposite has its words and forbids it.
    asked = written(*PROCEDURES)
    assert asked > 0.1
    assert written("opposite") < asked / 4
