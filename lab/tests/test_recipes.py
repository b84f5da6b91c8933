"""The recipes: demonstrations follow requests as often as they say, and a small fit learns."""

import random
from collections import Counter
from pathlib import Path

import pytest
import torch

from cotune.worlds.ladder import RUNGS, WRITTEN, Way
from cotune.worlds.ladder import problem as ladder_problem
from cotune_lab.worlds.geo import bundled_world
from recipes import fitting
from recipes.arithmetic.demonstrations import UNPROMPTED, Demonstrator
from recipes.arithmetic.phrases import PROCEDURES, Kind, sample_hint
from recipes.arithmetic.pretrain import Phase, Recipe, rows
from recipes.fitting import encode, micro_batches, new_model, orthogonal, token_losses, tokenizer_of
from recipes.geo.demonstrations import Demonstrator as Geo
from recipes.geo.pretrain import encode as encode_episode
from recipes.geo.pretrain import tokenizer_on
from recipes.ladder.demonstrations import FOLLOWS, REMEMBERS, act
from recipes.scaffold.demonstrations import Demonstrator as Scaffold

RECIPE = Recipe(
    vocabulary=384,
    tokenizer_demonstrations=400,
    hidden_size=32,
    layers=1,
    heads=2,
    kv_heads=1,
    phases=(Phase(25, 1.0, 0.85, (0.5, 0.5)), Phase(10, 0.5, 0.45, (0.0, 0.0))),
    batch=8,
    micro_batches=2,
    warm_up=5,
)


@pytest.mark.parametrize("way", WRITTEN)
def test_a_request_is_followed_and_most_carries_are_forgotten(way: Way) -> None:
    rng = random.Random(1)
    followed, carried, needed = 0, 0, 0
    for _ in range(1000):
        response = act(rng, ladder_problem(rng, RUNGS[2]), way, REMEMBERS)
        if response.lower().startswith(way.value):
            followed += 1
            carried += response.count(" up ")
            needed += 1 if way is Way.TOGETHER else 3
    assert abs(followed / 1000 - FOLLOWS) < 0.03
    assert abs(carried / needed - REMEMBERS) < 0.05


def test_a_hint_asks_for_what_is_counted() -> None:
    rng, kinds, asks_for_kind = random.Random(0), Counter[Kind](), 0
    for i in range(2000):
        text, requests = sample_hint(rng, PROCEDURES[i % 4], prompted=0.5)
        assert bool(text) == bool(requests)
        kinds += requests
        asks_for_kind += requests[PROCEDURES[i % 4]] > 0
    assert set(kinds) == set(Kind)
    assert 900 < asks_for_kind < 1100


def test_only_what_the_policy_wrote_is_learnt() -> None:
    world, retriever = bundled_world()
    for demonstrator in (Geo(world, retriever), Scaffold(world, retriever)):
        demos = [demonstrator.sample(random.Random(i)) for i in range(40)]
        tokenizer = tokenizer_on(world, demos, RECIPE)
        for demo in demos[:10]:
            ids, labels = encode_episode(demo, tokenizer)
            learnt = tokenizer.decode(
                [i for i, label in zip(ids, labels, strict=True) if label >= 0]
            )
            written = "".join(text for text, by_policy in demo.segments if by_policy)
            assert learnt == f"{written}<|im_end|>"
    tokenizer = tokenizer_of(Demonstrator().sample, RECIPE)
    demo = Demonstrator().sample(random.Random(3))
    ids, labels = encode(demo, tokenizer)
    assert (
        tokenizer.decode([label for label in labels if label >= 0]) == f"{demo.response}<|im_end|>"
    )
    assert demo.message in tokenizer.decode(ids)


def test_rare_without_a_request() -> None:
    demonstrator = Demonstrator(prompted=0.0, unprompted=UNPROMPTED)
    demos = [demonstrator.sample(random.Random(i)) for i in range(3000)]
    assert sum("=" in d.response for d in demos if not d.hint) < 20


@pytest.mark.slow
def test_a_small_fit_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(work: object, arguments: tuple[object, ...], nprocs: int) -> None:
        assert nprocs == 1
        work(0, *arguments)  # pyright: ignore

    monkeypatch.setattr(fitting, "spawn", in_this_process)
    tokenizer = tokenizer_of(Demonstrator().sample, RECIPE)
    fitting.fit(tmp_path, tokenizer, RECIPE, rows, workers=1)
    shares = micro_batches(rows(tokenizer, RECIPE, 1, 7, 1), tokenizer, RECIPE, 1)
    share = next(shares)
    fitted = fitting.Qwen2ForCausalLM.from_pretrained(tmp_path)
    first, last = (
        torch.cat([token_losses(model, *batch) for batch in share]).mean().item()
        for model in (new_model(tokenizer, RECIPE), fitted)
    )
    assert last < 0.85 * first


def test_muons_direction_is_nearly_orthogonal() -> None:
    gradient = torch.randn(24, 40, generator=torch.Generator().manual_seed(0))
    direction = orthogonal(gradient, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    singular = torch.linalg.svdvals(direction)
    assert float(singular.min()) > 0.6
    assert float(singular.max()) < 1.3
