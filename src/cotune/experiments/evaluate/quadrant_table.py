"""Quadrants as a table: the four scores, with the gains at its margins."""

from collections.abc import Iterator

from cotune.experiments.evaluate.quadrants import Estimate, Quadrants
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import Cell, Scores, Table

_WEIGHTS = {"initial": "initial weights", "trained": "trained weights"}
_PROMPTS = {"plain": "initial instruction", "prompted": "best instruction"}


def quadrant_table(quadrants: Quadrants) -> Table:
    """Return the scores of each decoding, with the gains at their margins, and the divergence."""
    headings = [_PROMPTS[prompt] for prompt in quadrants.prompts]
    headings += ["gain"] * (len(headings) > 1)
    return Table(
        [Cell(f"Held-out {quadrants.measure}"), *map(Cell, headings)],
        list(_rows(quadrants)),
        _notes(quadrants),
    )


def _rows(quadrants: Quadrants) -> Iterator[list[Cell]]:
    prompts, both = quadrants.prompts, len(quadrants.prompts) > 1
    form = Scores(quadrants.measure == EXACT_MATCH)

    def cell(score: Estimate, change: bool = False) -> Cell:
        return form.cell(score.mean, score.interval, change)

    for decoding, heading in (("greedy", "greedy"), ("sampled", f"avg@{quadrants.samples}")):
        yield [Cell(heading)]
        scores = {name: cell(each[decoding]) for name, each in quadrants.scores.items()}
        gains = {name: cell(each[decoding], True) for name, each in quadrants.gains.items()}
        for weights in quadrants.weights:
            cells = [scores[f"{weights}_{prompt}"] for prompt in prompts]
            yield [Cell(_WEIGHTS[weights]), *cells, *[gains[f"prompt_{weights}"]] * both]
        if quadrants.trained:
            names = [*(f"weights_{prompt}" for prompt in prompts), *["both"] * both]
            yield [Cell("gain"), *(gains[name] for name in names)]
    if quadrants.divergence:
        yield [Cell("KL to initial")]
        divergences = [quadrants.divergence[prompt] for prompt in prompts]
        cells = [Cell(f"{kl.mean:.2g}", "{:.2g}–{:.2g}".format(*kl.interval)) for kl in divergences]
        yield [Cell("nats per token"), *cells, *[Cell("")] * both]


def _notes(quadrants: Quadrants) -> str:
    """Say which quadrants coincide, and what the numbers are based on."""
    same = "The best instruction is the initial one. " * (len(quadrants.prompts) == 1)
    frozen = "The weights were not trained. " * (not quadrants.trained)
    return (
        f"{same}{frozen}{len(quadrants.questions):,} {quadrants.split} questions; {quadrants.samples} sampled "
        f"rollout{'s' * (quadrants.samples != 1)} of each at temperature {quadrants.temperature:g}; "
        "95 % intervals over questions."
    )
