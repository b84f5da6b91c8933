"""Measure the bundled policy of `ladder` and write its card: `card.json` and `README.md`."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.policy.local_policy import load
from cotune.run.json_files import write_atomic, write_json_atomic
from cotune.worlds.ladder import RUNGS
from cotune.worlds.ladder_rules import REMEDIES, STYLE, Lack
from recipes.cards import identity, introduction, markdown_table, share
from recipes.ladder.measure import BENCH, LIMITS, WAYS
from recipes.ladder.phrases import INITIAL
from recipes.ladder.pretrain import Recipe
from recipes.measuring import TEMPERATURE, Figure, read_bank

PROBLEMS = 60
PACKAGES = ("torch", "transformers", "tokenizers")


def sections() -> dict[str, tuple[str, ...]]:
    """Return the sentences that the card measures, by name: the bank's, and the offline rules'."""
    rules = {
        "rules: fewer lines": REMEDIES[Lack.FEWER_LINES],
        "rules: line per number": REMEDIES[Lack.LINE_PER_NUMBER],
        "rules: written order": REMEDIES[Lack.WRITTEN_ORDER],
        "rules: style": STYLE,
    }
    return {**read_bank(BENCH.bank), **rules}


def write_card(
    folder: Path, recipe: Recipe, problems: int = PROBLEMS, log: Callable[[str], None] = print
) -> None:
    """Measure the policy in `folder` and write card.json and README.md beside its weights.

    Args:
        problems: for each request, and for the initial instruction 24 times as many.

    Raises:
        ConfigError: there is no policy, or its shape is not the recipe's.
    """
    card = describe(folder, recipe)
    card["measurement"] = {
        "split": "test", "problems": problems, "temperature": TEMPERATURE, "seed": 0,
        "limits": asdict(LIMITS),
    }  # fmt: skip
    card["figures"] = []
    coordinator = BENCH.policy(folder)
    for greedy in (False, True):
        found = {"none": BENCH.figure(coordinator, [INITIAL], 24 * problems, greedy)}
        for name, lines in sections().items():
            found[name] = BENCH.figure(
                coordinator, [BENCH.instructed(s, i) for i, s in enumerate(lines)], problems, greedy
            )
        card["figures"] += [_row(name, one, greedy) for name, one in found.items()]
        for name, one in found.items():
            log(one.line(name))
    write_json_atomic(folder / "card.json", card)
    write_atomic(folder / "README.md", readme(card))


def _row(name: str, found: Figure, greedy: bool) -> dict[str, Any]:
    return {
        "request": name,
        "greedy": greedy,
        **share("accuracy", found.score, found.n),
        "ways": {way: round(value, 4) for way, value in found.ways.items()},
        "by_stratum": {rung: round(value, 4) for rung, value in found.by_stratum.items()},
    }


def describe(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Return the card without its figures: what the policy is and what it was made from."""
    model, tokenizer = load(folder)
    made = (len(tokenizer), model.config.hidden_size, model.config.num_hidden_layers)
    wanted = (made[0], recipe.hidden_size, recipe.layers)
    if made != wanted or made[0] > recipe.vocabulary:
        raise ConfigError(
            f"{folder}: vocabulary, width and layers are {made}, but the recipe's are "
            f"{(recipe.vocabulary, *wanted[1:])}; rebuild the policy: make policy-ladder"
        )
    return {
        **identity(folder, "ladder", model, made[0], recipe, PACKAGES),
        "data": {
            "demonstrations": sum(phase.steps for phase in recipe.phases) * recipe.batch,
            "sentences": {},
        },
    }


def readme(card: Mapping[str, Any]) -> str:
    """Return the card for people; every figure is card.json's."""
    tables = {
        name: _table([row for row in card["figures"] if row["greedy"] is greedy])
        for name, greedy in (("sampled", False), ("greedy", True))
    }
    phases = ", then ".join(
        f"{phase['steps']:,} steps at {phase['scale']:g} of the learning rates"
        for phase in card["recipe"]["phases"]
    )
    return _README.format(**introduction(card), phases=phases, **tables)


def _table(figures: list[dict[str, Any]]) -> str:
    head = ["request", "right", "95 % interval", *WAYS, *RUNGS]
    lines: list[list[str]] = []
    for row in figures:
        low, high = row["interval"]
        cells = [row["request"], f"{row['accuracy']:.3f}", f"{low:.3f} to {high:.3f}"]
        cells += [f"{row['ways'][way]:.1%}" for way in WAYS]
        cells += [f"{row['by_stratum'][rung]:.2f}" for rung in RUNGS]
        lines.append(cells)
    return markdown_table(head, lines)


_README = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# cotune's bundled policy for the world `ladder`

A {architecture} of {parameters:,} parameters with a byte-level BPE of {vocabulary:,} tokens, digits alone. It
answers sums of several numbers in `\\boxed{{}}`: at once or, if the instruction asks for it, after summing some
of the numbers together, adding them one by one, or taking them in the written order.

## What it is for

To check in minutes, on a CPU, whether a method finds instructions that become the best only after
training. It is no language model: it knows these problems and nothing else, and no figure obtained with it
says anything about pretrained models.

## Recipe

`python -m recipes.ladder` (or `make policy-ladder`) trains it from scratch and measures it: seed
{recipe[seed]}, {phases}; {recipe[batch]} problems a step ({data[demonstrations]:,} in all), Muon at {recipe[muon_lr]} for the
matrices and AdamW at {recipe[adamw_lr]} for the rest, loss on the response alone. Measured with {packages}.

Demonstrations follow a request in 95 % and remember a carry or a borrow in {recipe[remembers]:.0%} of the
places that need one, in each procedure: what is learnt of it under one serves the others. Without a request they answer
at once. Requests are verb and noun phrases in frames that also negate and contrast, so that words alone do
not say what is asked for. Stories are in no demonstration.

## Figures

{measured[problems]} test problems for each request, 24 times as many without one, at temperature {measured[temperature]}:

{sampled}

Greedy:

{greedy}

The requests of the first rows stand in `recipes/ladder/bank.txt`, written apart from the recipe; the
others are those of the offline rules. `python -m recipes.ladder.qualify` checks what the world is made for.

## Licence

Apache-2.0. No text from elsewhere was used.
"""
