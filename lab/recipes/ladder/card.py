"""Measure the bundled policy of `ladder` and write its card: `card.json` and `README.md`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotune.worlds.ladder_rules import REMEDIES, STYLE, Lack
from recipes.bank_cards import bank_readme, described, write_bank_card
from recipes.ladder.measure import BENCH
from recipes.ladder.pretrain import Recipe

PROBLEMS = 60
PACKAGES = ("torch", "transformers", "tokenizers")
RULES = {
    "together": REMEDIES[Lack.FEWER_LINES],
    "one by one": REMEDIES[Lack.LINE_PER_NUMBER],
    "in order": REMEDIES[Lack.WRITTEN_ORDER],
    "style": STYLE,
}


def write_card(folder: Path, recipe: Recipe) -> None:
    """Measure the policy in `folder` and write card.json and README.md beside its weights.

    Raises:
        ConfigError: there is no policy, or its shape is not the recipe's.
    """
    write_bank_card(folder, describe(folder, recipe), BENCH, RULES, README, PROBLEMS)


def describe(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Return the card without its figures."""
    return described(folder, BENCH, recipe, PACKAGES)


def readme(card: Mapping[str, Any]) -> str:
    """Return the card for people."""
    return bank_readme(card, README)


README = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# cotune's bundled policy for the world `ladder`

A {architecture} of {parameters:,} parameters with a byte-level BPE of {vocabulary:,} tokens; each digit is a token. It
answers sums of several numbers in `\\boxed{{}}`: at once or, if the instruction asks for it, after summing the
added numbers first, adding them one by one, or taking them in the written order.

## What it is for

To check in minutes, on a CPU, whether a method finds instructions that become the best only after
training. It is not a language model: it knows these problems and nothing else, and no figure obtained with it
says anything about pretrained models.

## Recipe

`python -m recipes.ladder` (or `make policy-ladder`) trains it from scratch and measures it: seed
{recipe[seed]}, {phases}; {recipe[batch]} problems a step ({data[demonstrations]:,} in all), Muon at {recipe[muon_lr]} for the
matrices and AdamW at {recipe[adamw_lr]} for the rest, loss on the response only. Measured with {packages}.

Demonstrations follow a request in 95 % and remember a carry or a borrow in {recipe[remembers]:.0%} of the
places that need one, in each procedure: what is learnt about it in one helps in the others. Without a request they answer
at once. Requests are verb and noun phrases in frames that also negate and contrast, so that words alone do
not say what is asked for. Stories are in no demonstration.

## Figures

{measured[questions]} test problems for each request; under the initial instruction {measured[plain]:,} rollouts of
{measured[problems]} problems, and greedily one of each. At temperature {measured[temperature]}:

{sampled}

Greedy:

{greedy}

The requests of the sections are in `recipes/ladder/bank.txt`, written separately from the recipe; those of
"rules" are the offline rules'. `python -m recipes.ladder.qualify` checks that the world does what it is made for.

## Licence

Apache-2.0. No text from elsewhere was used.
"""
