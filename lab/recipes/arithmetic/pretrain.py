"""Fit the bundled policy of `arithmetic` from scratch: tokenizer, then weights."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from recipes.arithmetic.demonstrations import UNPROMPTED, Demonstrator, Unprompted
from recipes.fitting import FitPhase, FitRecipe, Row, encode, fit, stream_rng, tokenizer_of


@dataclass(frozen=True)
class Phase(FitPhase):
    """A stretch of training.

    Attributes:
        prompted: the share of demonstrations whose hint asks for the problem's own procedure.
        unprompted: the chances of a look, and of a procedure after it, if none does.
        elsewhere: the share of the other hints that is sure to ask for another kind's procedure.
    """

    prompted: float
    unprompted: Unprompted
    elsewhere: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Recipe(FitRecipe):
    """Everything the weights depend on, except the package versions.

    The first phase teaches the procedures, the second when to use them, the third to use them only
    rarely without a hint, the last to use them only for the kind of problem that the hint names.
    """

    vocabulary: int = 768
    layers: int = 5
    phases: tuple[Phase, ...] = (
        Phase(2000, 1.0, 0.8, (0.12, 0.025)),
        Phase(900, 0.4, 0.45, (0.12, 0.025)),
        Phase(300, 0.2, 0.25, UNPROMPTED),
        Phase(800, 0.3, 0.35, UNPROMPTED, elsewhere=0.8),
    )
    batch: int = 64
    micro_batches: int = 4
    context: int = 512


def rows(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, number: int, rank: int, workers: int
) -> Iterator[Row]:
    """Yield one worker's demonstrations of a phase, endlessly."""
    rng, phase = stream_rng(recipe, number, rank, workers), recipe.phases[number]
    demonstrator = Demonstrator(phase.prompted, phase.unprompted, phase.elsewhere)
    while True:
        yield encode(demonstrator.sample(rng), tokenizer)


def pretrain(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Run the recipe and write a Hugging Face folder to `out`."""
    fit(out, tokenizer_of(Demonstrator().sample, recipe), recipe, rows, workers)
