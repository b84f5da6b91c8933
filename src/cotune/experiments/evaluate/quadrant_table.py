"""Quadrants as a table: the four scores, with the gains at its margins."""

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from cotune.experiments.evaluate.quadrants import Estimate, Quadrants
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import plain_table

WEIGHT_LABELS = {"initial": "initial weights", "trained": "trained weights"}
PROMPT_LABELS = {"plain": "initial instruction", "prompted": "best instruction"}
GAIN = "gain"
DIVERGENCE, OF = "KL to initial", "nats per token"


Line = tuple[str, list[tuple[Estimate | None, bool]]]
"""A label; by column a score, and whether it is a difference."""


def columns(quadrants: Quadrants) -> list[str]:
    """Return the headings of the columns: the prompts, and the gain of the best one if they differ."""
    headings = [PROMPT_LABELS[prompt] for prompt in quadrants.prompts]
    return [*headings, GAIN] if len(headings) > 1 else headings


def blocks(quadrants: Quadrants) -> Iterator[tuple[str, list[Line]]]:
    """Yield each decoding with its lines (both weights, and what training gained); last the divergence."""
    prompts, both = quadrants.prompts, len(quadrants.prompts) > 1
    for decoding, heading in (("greedy", "greedy"), ("sampled", f"avg@{quadrants.samples}")):
        scores = {name: each[decoding] for name, each in quadrants.scores.items()}
        gains = {name: (each[decoding], True) for name, each in quadrants.gains.items()}
        lines: list[Line] = []
        for weights in quadrants.weights:
            cells = [(scores[f"{weights}_{prompt}"], False) for prompt in prompts]
            lines.append((WEIGHT_LABELS[weights], [*cells, *[gains[f"prompt_{weights}"]] * both]))
        if quadrants.trained:
            names = [*(f"weights_{prompt}" for prompt in prompts), *["both"] * both]
            lines.append((GAIN, [gains[name] for name in names]))
        yield heading, lines
    if quadrants.divergence:
        cells = [(quadrants.divergence[prompt], False) for prompt in prompts]
        yield DIVERGENCE, [(OF, [*cells, *[(None, False)] * both])]


def notes(quadrants: Quadrants) -> list[str]:
    """Say which quadrants coincide, and what the numbers are based on."""
    same = ["The best instruction is the initial one."] * (len(quadrants.prompts) == 1)
    frozen = ["The weights were not trained."] * (not quadrants.trained)
    told = (
        f"{len(quadrants.questions):,} {quadrants.split} questions; {quadrants.samples} sampled "
        f"rollout{'s' * (quadrants.samples != 1)} of each at "
        f"temperature {quadrants.temperature:g}; 95 % intervals over questions"
    )
    return [*same, *frozen, told]


def show(quadrants: Quadrants, console: Console) -> None:
    """Print the table and its notes."""
    shares = quadrants.measure == EXACT_MATCH
    title = f"{quadrants.measure} on the {quadrants.split} split{', per cent' if shares else ''}"
    table = plain_table(escape(title), [""], columns(quadrants))
    for heading, lines in blocks(quadrants):
        table.add_row(f"[bold]{heading}[/]")
        form, scale = ((".1f", ".0f"), 100) if shares else ((".2f", ".2f"), 1)
        if heading == DIVERGENCE:
            form, scale = (".2g", ".2g"), 1
        for label, cells in lines:
            texts = (_cell(score, gain, form, scale) if score else "" for score, gain in cells)
            table.add_row(f"  {label}", *texts)
    console.print(table)
    for note in notes(quadrants):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _cell(score: Estimate, gain: bool, form: tuple[str, str], scale: float) -> str:
    """Write a score and its interval in these formats."""
    between = "–" if score.interval[0] >= 0 else " to "
    ends = between.join(format(scale * end, form[1]) for end in score.interval)
    return f"{format(scale * score.mean, '+' * gain + form[0])} [dim]({ends})[/]"
