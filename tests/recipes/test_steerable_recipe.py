"""The adapter of steerable SmolLM2: its files belong together, and its demonstrations are what its card says."""

import hashlib
import json
import random
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import recipes.steerable
from cotune.policy.adapters import adapter_base
from recipes.arithmetic.demonstrations import Demonstrator
from recipes.cards import read_card
from recipes.steerable.fit import BASE, KINDS, Recipe

ADAPTER = Path(recipes.steerable.__file__).parent / "adapter"


def test_adapter_card_and_recipe_belong_together() -> None:
    card = read_card(ADAPTER)
    weights = (ADAPTER / "adapter_model.safetensors").read_bytes()
    assert card["adapter_sha256"] == hashlib.sha256(weights).hexdigest()
    recipe = json.loads(json.dumps(asdict(Recipe())))
    assert card["recipe"] == json.loads((ADAPTER / "recipe.json").read_text()) == recipe
    assert adapter_base(ADAPTER) == BASE


def test_demonstrations_write_procedures_where_a_hint_asks_for_them() -> None:
    recipe, rng = Recipe(), random.Random(0)
    chances = recipe.phases[-1].unprompted
    demonstrator = Demonstrator(recipe.prompted, chances, recipe.elsewhere, KINDS)
    drawn = [demonstrator.sample(rng) for _ in range(2000)]
    assert Counter(one.problem.kind for one in drawn).keys() == set(KINDS)
    plain = [one for one in drawn if not one.hint]
    assert sum("=" in one.response for one in plain) <= 3  # 0.03 % of about 550
    assert 0.25 < sum("=" in one.response for one in drawn) / len(drawn) < 0.35
