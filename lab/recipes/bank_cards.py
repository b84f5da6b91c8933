"""Write the card of a policy that was measured under a bank of requests: `card.json` and `README.md`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.policy.local_policy import load
from cotune.run.json_files import write_atomic, write_json_atomic
from recipes.cards import identity, introduction, markdown_table, share
from recipes.fitting import FitRecipe
from recipes.measuring import PLAIN, Bench, Figure, read_bank


def write_bank_card(
    folder: Path,
    card: dict[str, Any],
    bench: Bench,
    rules: Mapping[str, Sequence[str]],
    template: str,
    questions: int,
) -> None:
    """Measure the policy in `folder` and write card.json and README.md beside its weights.

    Args:
        card: its fields without figures.
        rules: the offline rules' sentences by name, measured beside the bank's.
        template: of the README.
        questions: for each request, and for the initial instruction `PLAIN` times as many.
    """
    coordinator = bench.policy(folder)
    card["measurement"] = {
        "split": "test", "problems": len(coordinator.environment.tasks("test")), "questions": questions,
        "plain": PLAIN * questions, "temperature": bench.temperature, "seed": 0, "limits": asdict(bench.limits),
    }  # fmt: skip
    card["figures"] = []
    for greedy in (False, True):
        found = bench.by_section(coordinator, questions, greedy)
        for name, lines in rules.items():
            texts = [bench.instructed(line, i) for i, line in enumerate(lines)]
            found[f"rules: {name}"] = bench.figure(coordinator, texts, questions, greedy)
        card["figures"] += [_row(name, one, greedy) for name, one in found.items()]
        for name, one in found.items():
            print(one.line(name), flush=True)
    write_json_atomic(folder / "card.json", card)
    write_atomic(folder / "README.md", bank_readme(card, template))


def _row(name: str, found: Figure, greedy: bool) -> dict[str, Any]:
    return {
        "request": name,
        "greedy": greedy,
        **share("accuracy", found.score, found.n),
        "ways": {way: round(value, 4) for way, value in found.ways.items()},
        "by_stratum": {name: round(value, 4) for name, value in found.by_stratum.items()},
    }


def described(
    folder: Path, bench: Bench, recipe: FitRecipe, packages: Sequence[str]
) -> dict[str, Any]:
    """Return a card without its figures: what the policy is and what it was made from.

    Raises:
        ConfigError: there is no policy, or its shape is not the recipe's.
    """
    model, tokenizer = load(folder)
    made = (len(tokenizer), model.config.hidden_size, model.config.num_hidden_layers)
    wanted = (made[0], recipe.hidden_size, recipe.layers)
    if made != wanted or made[0] > recipe.vocabulary:
        raise ConfigError(
            f"{folder}: vocabulary, width and layers are {made}, but the recipe's are "
            f"{(recipe.vocabulary, *wanted[1:])}; rebuild the policy: make policy-{bench.world}"
        )
    steps = sum(phase.steps for phase in recipe.phases)
    return {
        **identity(folder, bench.world, model, made[0], recipe, packages),
        "data": {
            "demonstrations": steps * recipe.batch,
            "bank": {name: len(lines) for name, lines in read_bank(bench.bank).items()},
        },
    }


def bank_readme(card: Mapping[str, Any], template: str) -> str:
    """Return the card for people; every figure is card.json's."""
    tables = {
        name: _table([row for row in card["figures"] if row["greedy"] is greedy])
        for name, greedy in (("sampled", False), ("greedy", True))
    }
    phases = ", then ".join(
        f"{phase['steps']:,} steps at {phase['scale']:g} of the learning rates"
        for phase in card["recipe"]["phases"]
    )
    return template.format(**introduction(card), phases=phases, **tables)


def _table(figures: Sequence[Mapping[str, Any]]) -> str:
    ways, strata = list(figures[0]["ways"]), list(figures[0]["by_stratum"])
    lines: list[list[str]] = []
    for row in figures:
        low, high = row["interval"]
        cells = [row["request"], f"{row['accuracy']:.3f}", f"{low:.3f} to {high:.3f}"]
        cells += [f"{row['ways'][way]:.1%}" for way in ways]
        cells += [f"{row['by_stratum'][stratum]:.2f}" for stratum in strata]
        lines.append(cells)
    return markdown_table(["request", "right", "95 % interval", *ways, *strata], lines)
