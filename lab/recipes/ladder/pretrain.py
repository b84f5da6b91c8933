"""Fit the bundled policy of `ladder` from scratch: tokenizer, then weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from recipes.fitting import FitPhase, FitRecipe, Row, encode, fit, stream_rng, tokenizer_of
from recipes.ladder.demonstrations import REMEMBERS, Demonstrator


@dataclass(frozen=True, kw_only=True)
class Recipe(FitRecipe):
    """Everything the weights depend on, except the package versions.

    Attributes:
        remembers: chance that a demonstration remembers a carry or a borrow.
    """

    remembers: float = REMEMBERS
    vocabulary: int = 768
    layers: int = 5
    phases: tuple[FitPhase, ...] = (FitPhase(1400, 1.0), FitPhase(400, 0.3))
    batch: int = 64
    micro_batches: int = 4
    context: int = 512


def rows(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, number: int, rank: int, workers: int
) -> Iterator[Row]:
    """Yield one worker's demonstrations of a phase, endlessly."""
    rng, demonstrator = stream_rng(recipe, number, rank, workers), Demonstrator(recipe.remembers)
    while True:
        yield encode(demonstrator.sample(rng), tokenizer)


def pretrain(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Run the recipe and write a Hugging Face folder to `out`."""
    fit(out, tokenizer_of(Demonstrator(recipe.remembers).sample, recipe), recipe, rows, workers)
