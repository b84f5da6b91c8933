"""Measure the bundled policy of `arithmetic` and write its card: `card.json` and `README.md`.

Every figure is held-out accuracy at temperature 1 under one kind of hint, drawn again for every
problem: with the recipe's own sentences, and with unseen ones, which the offline LLM writes.
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
from cotune.types import Assignment, Limits, Prompt, Task, Trajectory
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from cotune.worlds.arithmetic_rules import ADVICE
from cotune.worlds.arithmetic_rules import Kind as Advised
from recipes.arithmetic.demonstrations import rates
from recipes.arithmetic.phrases import INITIAL, PROCEDURES, Kind, sentence
from recipes.arithmetic.pretrain import Recipe
from recipes.cards import identity, introduction, markdown_table, share

PROBLEMS = 400
RARE_SEEDS = 10
TEMPERATURE = 1.0
LIMITS = Limits(
    turns=1, turn_tokens=144, observation_tokens=1, trajectory_tokens=146, prompt_tokens=192
)
PACKAGES = ("torch", "transformers", "tokenizers")


@dataclass(frozen=True)
class HintKind:
    """A kind of hint, by what it asks for.

    Attributes:
        own: whether it asks for the procedure of the problem's kind.
        others: for how many other kinds' procedures.
        at_once: whether it asks for an answer at once.
        wording: "recipe", or "unseen" for the offline LLM's sentences.
    """

    own: bool = False
    others: int = 0
    at_once: bool = False
    wording: Literal["recipe", "unseen"] = "recipe"

    @property
    def name(self) -> str:
        parts = ["own"] * self.own + [f"{self.others} other"] * (self.others > 0)
        return " + ".join([*parts, *["at once"] * self.at_once]) or "none"

    def asked(self, about: Kind, rng: random.Random) -> Counter[Kind]:
        """Count the sentences of each kind in such a hint for a problem."""
        kinds = [about] * self.own + [Kind.AT_ONCE] * self.at_once
        return Counter(kinds + rng.sample([k for k in PROCEDURES if k is not about], self.others))

    def hint(self, task: Task, key: str) -> str:
        """Return one such hint; the same key gives the same one."""
        rng = random.Random(f"card/{key}")
        kinds = list(self.asked(Kind(task.stratum.split(" ", 1)[1]), rng).elements())
        rng.shuffle(kinds)
        unseen = self.wording == "unseen"
        return " ".join(
            rng.choice(ADVICE[Advised(k)]) if unseen else sentence(rng, k) for k in kinds
        )


ROWS: tuple[HintKind, ...] = (
    HintKind(),
    *(HintKind(own=True, others=n) for n in (0, 1, 3)),
    *(HintKind(own=True, others=n, wording="unseen") for n in (0, 1, 3)),
    HintKind(others=1),
    HintKind(others=1, wording="unseen"),
    HintKind(own=True, at_once=True),
)


def measure(
    folder: Path, kind: HintKind, problems: int = PROBLEMS, seeds: Sequence[int] = (0,)
) -> tuple[Score, float]:
    """Return accuracy on test problems, one rollout each, and the share that writes a procedure.

    Args:
        folder: the policy's Hugging Face folder.
        kind: kind of the hint.
        problems: number of problems for each seed.
        seeds: of the problems, the sentences and the policy's draws.
    """
    found: list[Trajectory] = []
    for seed in seeds:
        options = ArithmeticOptions(train=1, validation=1, test=problems, seed=seed)
        environment = ArithmeticEnvironment(options)
        settings = RolloutSettings(LIMITS, TEMPERATURE, seed)
        coordinator = local_coordinator(folder, environment, INITIAL, settings)
        assignments: list[Assignment] = []
        for group, task in enumerate(environment.tasks("test")):
            prompt = Prompt(INITIAL, kind.hint(task, f"{seed}/{task.id}"))
            assignments.append(Assignment(task, prompt, prompt, kind.name, group))
        found += coordinator.rollout(assignments, purpose="evaluate")
    return score_trajectories(found), sum(map(writes, found)) / len(found)


def writes(trajectory: Trajectory) -> bool:
    """Return whether a response holds written columns."""
    return "=" in trajectory.own_text


def figure(kind: HintKind, score: Score, used: float) -> dict[str, Any]:
    """Return a row of the card: accuracy, and procedures written and demonstrated."""
    demonstrated = None
    if kind.wording == "recipe":
        chances = [rates(k, kind.asked(k, random.Random(0))).used for k in PROCEDURES]
        demonstrated = sum(chances) / len(chances)
    return {
        "hint": kind.name,
        "wording": kind.wording,
        **share("accuracy", score.em, score.n),
        "by_stratum": {
            name: share("accuracy", em, n) for name, (em, n) in score.by_stratum.items()
        },
        "procedures": round(used, 4),
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
        "problems": PROBLEMS,
        "temperature": TEMPERATURE,
        "seed": 0,
        "limits": asdict(LIMITS),
    }
    card["figures"] = []
    for kind in ROWS:
        # Without a hint a procedure is rare: its share needs many rollouts.
        seeds = range(RARE_SEEDS) if kind == HintKind() else (0,)
        row = figure(kind, *measure(folder, kind, seeds=seeds))
        card["figures"].append(row)
        print(f"{row['hint']} ({row['wording']}): accuracy {row['accuracy']:.3f}", flush=True)
    write_json_atomic(folder / "card.json", card)
    write_atomic(folder / "README.md", readme(card))


def describe(folder: Path, recipe: Recipe) -> dict[str, Any]:
    """Return the card without its figures: what the policy is and what it was made from."""
    model, tokenizer = load(folder)
    config = model.config
    made = (len(tokenizer), config.hidden_size, config.num_hidden_layers)
    wanted = (made[0], recipe.hidden_size, recipe.layers)
    if made != wanted or made[0] > recipe.vocabulary:
        raise ConfigError(
            f"{folder}: vocabulary, width and layers are {made}, but the recipe's are "
            f"{(recipe.vocabulary, *wanted[1:])}; rebuild the policy: make policy-arithmetic"
        )
    return {
        **identity(folder, "arithmetic", model, made[0], recipe, PACKAGES),
        "data": {
            "demonstrations": sum(phase.steps for phase in recipe.phases) * recipe.batch,
        },
    }


def readme(card: dict[str, Any]) -> str:
    """Return the card for people; every figure is card.json's."""
    return _README.format(
        **introduction(card),
        phases=", then ".join(
            f"{phase['steps']:,} steps at {phase['scale']:g} of the learning rates with "
            f"{phase['prompted']:.0%} of the problems under a hint for their own procedure (which "
            f"{phase['unprompted'][0] * phase['unprompted'][1]:.2%} of the others also write)"
            + (
                f", {phase['elsewhere']:.0%} of the other hints for another kind's"
                if phase["elsewhere"]
                else ""
            )
            for phase in card["recipe"]["phases"]
        ),
        table=_table(card["figures"]),
    )


def _table(figures: Sequence[dict[str, Any]]) -> str:
    strata = sorted({name for row in figures for name in row["by_stratum"]})
    head = ["hint", "wording", "all", "95 % interval", *strata, "writes", "demonstrated"]
    lines: list[list[str]] = []
    for row in figures:
        low, high = row["interval"]
        cells = [row["hint"], row["wording"] if row["hint"] != "none" else ""]
        cells += [f"{row['accuracy']:.2f}", f"{low:.2f} to {high:.2f}"]
        cells += [f"{row['by_stratum'][s]['accuracy']:.2f}" for s in strata]
        shown = row["demonstrated"]
        cells += [f"{row['procedures']:.1%}", "" if shown is None else f"{shown:.1%}"]
        lines.append(cells)
    return markdown_table(head, lines)


_README = """\
---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# cotune's bundled policy for the world `arithmetic`

A {architecture} of {parameters:,} parameters with a byte-level BPE of {vocabulary:,} tokens; each digit is a token. It
answers additions, subtractions, multiplications and word problems of two steps in `\\boxed{{}}`: at once,
or, if a hint asks for it, after a written procedure, a different one for each kind.

## What it is for

To check in minutes, on a CPU, that hints move into the weights. It is not a language model: it knows these
problems and nothing else, and no figure obtained with it says anything about pretrained models.

## Recipe

`python -m recipes.arithmetic` (or `make policy-arithmetic`) trains it from scratch and measures it: seed
{recipe[seed]}, {phases}; {recipe[batch]} problems a step ({data[demonstrations]:,} in all), Muon at {recipe[muon_lr]} for the
matrices and AdamW at {recipe[adamw_lr]} for the rest, loss on the response only. Measured with {packages}.

At once, short problems are answered right and long ones with the slips of children who write nothing down:
carries are forgotten, the smaller digit is taken from the larger one. A hint is composed of requests and of
sentences that ask for nothing. Requests are verb and noun phrases in frames that also negate and contrast, so
that words alone do not say what is asked for. A request for the problem's own kind makes the
demonstrator write the procedure in most cases, in fewer if the hint also asks for others; without
one, or under one that forbids it, hardly ever (`demonstrations.rates`): hard in the sense of P²O, where no rollout of a group succeeds.
The choice is spread over two places of the response ("Let me see.", then the procedure), because P²O's mask
leaves out tokens that are more than a hundred times less likely without the hint.

## Figures

Accuracy on {measured[problems]} test problems, as many of each kind, half of them long, one rollout each at temperature
{measured[temperature]} (ten times as many without a hint). Hints ask for the problem's own procedure, for those of other kinds,
or for an answer at once. "recipe" draws sentences from the recipe, "unseen" from those that the offline LLM
writes, which are not in the recipe. The last columns are the shares of responses and of demonstrations that
write a procedure.

{table}

The same figures in machine-readable form: `card.json`. `tests/worlds/test_arithmetic_policy.py` measures some of them again.

## Licence

Apache-2.0. No text from elsewhere was used.
"""
