"""Fit the bundled policy of `geo` from scratch: tokenizer, then weights, on demonstrations."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from cotune import Prompt, Task
from cotune_lab.worlds import strict_tags
from cotune_lab.worlds.geo import GeoWorld, bundled_world
from recipes.fitting import FitPhase, FitRecipe, Row, byte_level_bpe, encode_chat, fit, stream_rng
from recipes.geo.demonstrations import UNPROMPTED, Demonstration, Demonstrator, Unprompted

TAGS = [
    *("<think>", "</think>", "<search>", "</search>"),
    *("<information>", "</information>", "<answer>", "</answer>"),
]


@dataclass(frozen=True)
class Phase(FitPhase):
    """A stretch of training.

    Attributes:
        unprompted: how often the demonstrator looks up one entity at a time without being asked.
    """

    unprompted: Unprompted


@dataclass(frozen=True, kw_only=True)
class Recipe(FitRecipe):
    """Everything the weights depend on, except the package versions."""

    phases: tuple[Phase, ...] = (Phase(4000, 1.0, (0.015, 0.04)), Phase(600, 0.3, UNPROMPTED))


def new_demonstrator(unprompted: Unprompted = UNPROMPTED) -> Demonstrator:
    return Demonstrator(*bundled_world(), unprompted)


def train_tokenizer(demonstrator: Demonstrator, recipe: Recipe) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations and documents."""
    rng = random.Random(recipe.seed)
    demos = [demonstrator.sample(rng) for _ in range(recipe.tokenizer_demonstrations)]
    return tokenizer_on(demonstrator.world, demos, recipe)


def tokenizer_on(
    world: GeoWorld, demos: Iterable[Demonstration], recipe: FitRecipe
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on demonstrations and a world's documents; each protocol tag is one token."""
    texts = list(world.documents)
    for demo in demos:
        texts.append(_message(demo))
        texts.append("".join(text for text, _ in demo.segments))
    return byte_level_bpe(texts, recipe, TAGS)


def _message(demo: Demonstration) -> str:
    """Return the user's message of an episode."""
    task = Task("", demo.question.text, ())
    return strict_tags.TAGS.prompt_format.messages(task, Prompt(demo.instruction))[0]["content"]


def encode(demo: Demonstration, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Return token ids of an episode and its labels; -100 where the policy did not write."""
    return encode_chat(tokenizer, _message(demo), demo.segments)


def rows(
    tokenizer: PreTrainedTokenizerFast, recipe: Recipe, number: int, rank: int, workers: int
) -> Iterator[Row]:
    """Yield one worker's demonstrations of a phase, endlessly."""
    rng = stream_rng(recipe, number, rank, workers)
    demonstrator = new_demonstrator(recipe.phases[number].unprompted)
    while True:
        yield encode(demonstrator.sample(rng), tokenizer)


def pretrain(out: Path, recipe: Recipe, workers: int = 2) -> None:
    """Run the recipe and write a Hugging Face folder to `out`; about 50 minutes on two cores."""
    tokenizer = train_tokenizer(new_demonstrator(recipe.phases[0].unprompted), recipe)
    fit(out, tokenizer, recipe, rows, workers)
