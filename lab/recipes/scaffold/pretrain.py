"""Fit the bundled policy of `scaffold` from scratch: tokenizer, then weights."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from cotune_lab.worlds.geo import bundled_world
from recipes.fitting import FitPhase, FitRecipe, Row, fit, stream_rng
from recipes.geo.pretrain import encode, tokenizer_on
from recipes.scaffold.demonstrations import NAMES, Demonstrator


@dataclass(frozen=True)
class Phase(FitPhase):
    """A stretch of training.

    Attributes:
        names: chance that a demonstrated query names its place. The first phase names more of them, so that
            copying names is learnt sooner; the last one sets the policy's rate.
        copies: whether documents that are shown again are learnt too, to learn copying sooner.
    """

    names: float
    copies: bool


@dataclass(frozen=True, kw_only=True)
class Recipe(FitRecipe):
    """Everything the weights depend on, except the package versions.

    Attributes:
        sharpness: factor of all logits at the end. 2 squares the odds of every token, so that behaviour that
            was never demonstrated but still sampled in one rollout of 250 is hardly sampled at all.
    """

    phases: tuple[Phase, ...] = (
        Phase(1600, 1.0, 0.8, True),
        Phase(1600, 0.5, NAMES, False),
    )
    context: int = 768
    sharpness: float = 2.0


def rows(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, number: int, rank: int, workers: int
) -> Iterator[Row]:
    """Yield one worker's demonstrations of a phase, endlessly."""
    rng, phase = stream_rng(recipe, number, rank, workers), recipe.phases[number]
    demonstrator = Demonstrator(*bundled_world(), phase.names, phase.copies)
    while True:
        yield encode(demonstrator.sample(rng), tokenizer)


def pretrain(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Run the recipe and write a Hugging Face folder to `out`."""
    demonstrator = Demonstrator(*bundled_world())
    rng = random.Random(recipe.seed)
    demos = [demonstrator.sample(rng) for _ in range(recipe.tokenizer_demonstrations)]
    fit(out, tokenizer_on(demonstrator.world, demos, recipe), recipe, rows, workers)
    sharpen(out, recipe.sharpness)


def sharpen(folder: Path, factor: float) -> None:
    """Multiply the logits of the policy in `folder` by a factor, through its last norm."""
    model = Qwen2ForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight.mul_(factor)
    model.save_pretrained(folder)
