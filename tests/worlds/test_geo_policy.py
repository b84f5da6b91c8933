"""The bundled policy as it ships, and its card."""

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec
from cotune.policy.local_policy import load
from cotune.policy.policy_files import policy_path
from cotune.run.scores import wilson
from cotune.types import Prompt
from cotune.worlds.geo import INITIAL_INSTRUCTION, GeoEnvironment, GeoOptions
from recipes.cards import read_card
from recipes.geo.card import (
    QUESTIONS,
    ROWS,
    UNSEEN,
    InstructionKind,
    describe,
    measure,
    readme,
)
from recipes.geo.phrases import INITIAL, Kind, all_sentences
from recipes.geo.pretrain import TAGS, Recipe

FOLDER = Path(policy_path("bundled:geo"))


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    return load(FOLDER)


@pytest.fixture(scope="module")
def card() -> dict[str, Any]:
    return read_card(FOLDER)


def row_of(card: dict[str, Any], kind: InstructionKind) -> dict[str, Any]:
    (row,) = [
        r for r in card["figures"] if (r["instruction"], r["wording"]) == (kind.name, kind.wording)
    ]
    return row


def test_size(policy: tuple[Any, Any]) -> None:
    model, tokenizer = policy
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert len(tokenizer) == model.config.vocab_size == Recipe().vocabulary


@pytest.mark.parametrize("tag", TAGS)
def test_each_tag_is_one_token_of_text(policy: tuple[Any, Any], tag: str) -> None:
    _model, tokenizer = policy
    ids = tokenizer(f"a{tag}b", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3
    assert ids[1] not in tokenizer.all_special_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"a{tag}b"


def test_chat_template_renders_a_task(policy: tuple[Any, Any]) -> None:
    codec = HFCodec(policy[1])
    environment = GeoEnvironment(GeoOptions(train=1, validation=1, test=1))
    task = environment.tasks("test")[0]
    text = codec.decode(codec.render(environment.messages(task, Prompt(INITIAL_INSTRUCTION))))
    assert text == (
        f"<|im_start|>user\n{INITIAL_INSTRUCTION}\n\nQuestion: {task.question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_recipe_and_the_world_share_the_initial_instruction() -> None:
    assert " ".join(sentence for _kind, sentence in INITIAL) == INITIAL_INSTRUCTION


def test_unseen_sentences_are_not_the_recipes() -> None:
    unseen = {sentence for pool in UNSEEN.values() for sentence in pool}
    assert len(unseen) > 30
    assert unseen.isdisjoint(all_sentences())


def test_instructions_of_a_kind_differ_by_key_and_repeat_by_key() -> None:
    kind = InstructionKind((Kind.DECOMPOSE, Kind.PLAN), "unseen")
    written = {kind.instruction(str(i)) for i in range(50)}
    assert len(written) > 20
    assert kind.instruction("7") == kind.instruction("7")
    for text in written:
        assert text.startswith(INITIAL_INSTRUCTION)
        assert any(text.endswith(sentence) for sentence in UNSEEN[Kind.PLAN])


def test_a_policy_of_another_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="make policy"):
        describe(FOLDER, Recipe(layers=5))


def test_card_belongs_to_the_weights(card: dict[str, Any]) -> None:
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert card["weights_sha256"] == digest, "measure again: python -m recipes.geo"
    assert card["recipe"] == json.loads(json.dumps(asdict(Recipe())))
    now = describe(FOLDER, Recipe())
    assert {k: card[k] for k in ("parameters", "vocabulary", "data")} == {
        k: now[k] for k in ("parameters", "vocabulary", "data")
    }
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == readme(card)


def test_card_adds_up(card: dict[str, Any]) -> None:
    assert [(r["instruction"], r["wording"]) for r in card["figures"]] == [
        (kind.name, kind.wording) for kind in ROWS
    ]
    for row in card["figures"]:
        by_hops = row["by_hops"].values()
        assert row["n"] == sum(part["n"] for part in by_hops) == QUESTIONS
        right = sum(part["em"] * part["n"] for part in by_hops)
        assert row["em"] == pytest.approx(right / row["n"], abs=1e-3)
        assert row["interval"] == pytest.approx(wilson(row["em"], row["n"]), abs=1e-3)


def test_the_policy_leaves_room(card: dict[str, Any]) -> None:
    """Low but not zero under the initial instruction, clearly higher under a good one."""
    initial = row_of(card, InstructionKind())
    assert 0.15 <= initial["em"] <= 0.45
    for wording in ("recipe", "unseen"):
        good = row_of(card, InstructionKind((Kind.DECOMPOSE, Kind.PLAN), wording))
        assert good["interval"][0] > initial["em"]
        assert good["em"] < 0.9


@pytest.mark.parametrize(
    "kind",
    [
        InstructionKind(),
        InstructionKind((Kind.DECOMPOSE,)),
        InstructionKind((Kind.DECOMPOSE, Kind.PLAN, Kind.EVIDENCE), "unseen"),
    ],
    ids=lambda kind: f"{kind.name} ({kind.wording})",
)
def test_figures_can_be_measured_again(card: dict[str, Any], kind: InstructionKind) -> None:
    """On other questions with other draws: equal shares by a two-proportion test at 99.9 %."""
    row = row_of(card, kind)
    again = measure(FOLDER, kind, questions=90, seed=1)
    pooled = (row["em"] * row["n"] + again.em * again.n) / (row["n"] + again.n)
    error = math.sqrt(pooled * (1 - pooled) * (1 / row["n"] + 1 / again.n))
    assert abs(row["em"] - again.em) <= 3.291 * error
