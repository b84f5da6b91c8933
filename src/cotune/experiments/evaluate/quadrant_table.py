"""Quadrants as a table: the four scores, with the gains at its margins."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from cotune.experiments.evaluate.quadrants import Estimate, Quadrants
from cotune.run.scores import EXACT_MATCH
from cotune.utils.tables import plain_table

WEIGHT_LABELS = {"initial": "initial weights", "trained": "trained weights"}
PROMPT_LABELS = {"plain": "initial instruction", "prompted": "best instruction"}
GAIN = "gain"
DIVERGENCE, OF = "KL to initial", "nats per token"


@dataclass(frozen=True)
class Line:
    """A line of the table: scores by column, None if there is none.

    Attributes:
        label: its name.
        cells: one a column: the prompts, and the gain of the best instruction if they differ.
        gains: whether each cell is a difference.
    """

    label: str
    cells: tuple[Estimate | None, ...]
    gains: tuple[bool, ...]


def columns(quadrants: Quadrants) -> list[str]:
    """Return the headings of the columns."""
    found = [PROMPT_LABELS[prompt] for prompt in quadrants.prompts]
    return [*found, GAIN] if len(found) > 1 else found


def blocks(quadrants: Quadrants) -> Iterator[tuple[str, list[Line]]]:
    """Yield each decoding with its lines (both weights, and what training gained); last the divergence."""
    prompts, both = quadrants.prompts, len(quadrants.prompts) > 1
    marks = (*(False for _ in prompts), *(True,) * both)
    for decoding, heading in (("greedy", "greedy"), ("sampled", f"avg@{quadrants.samples}")):
        scores, gains = quadrants.scores, {k: v[decoding] for k, v in quadrants.gains.items()}
        lines: list[Line] = []
        for weights in quadrants.weights:
            cells = [scores[f"{weights}_{prompt}"][decoding] for prompt in prompts]
            cells += [gains[f"prompt_{weights}"]] * both
            lines.append(Line(WEIGHT_LABELS[weights], tuple(cells), marks))
        if quadrants.trained:
            cells = [gains[f"weights_{prompt}"] for prompt in prompts] + [gains["both"]] * both
            lines.append(Line(GAIN, tuple(cells), (True,) * len(cells)))
        yield heading, lines
    if quadrants.divergence:
        found = tuple(quadrants.divergence[prompt] for prompt in prompts)
        yield DIVERGENCE, [Line(OF, (*found, *(None,) * both), marks)]


def notes(quadrants: Quadrants) -> list[str]:
    """Say which quadrants coincide, and what the numbers are based on."""
    lines = coincidences(same=len(quadrants.prompts) == 1, frozen=not quadrants.trained)
    told = (
        f"{len(quadrants.questions):,} {quadrants.split} questions; {quadrants.samples} sampled "
        f"rollout{'s' * (quadrants.samples != 1)} of each at "
        f"temperature {quadrants.temperature:g}; 95 % intervals over questions"
    )
    return [*lines, told]


def coincidences(*, same: bool, frozen: bool) -> list[str]:
    """Say which quadrants coincide because the instruction is the same or the weights are frozen."""
    said = ["The best instruction is the initial one."] if same else []
    return [*said, "The weights were not trained."] if frozen else said


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
        for line in lines:
            cells = (
                "" if found is None else _cell(found, gain, form, scale)
                for found, gain in zip(line.cells, line.gains, strict=True)
            )
            table.add_row(f"  {line.label}", *cells)
    console.print(table)
    for note in notes(quadrants):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _cell(score: Estimate, gain: bool, form: tuple[str, str], scale: float) -> str:
    """Write a score and its interval in these formats."""
    between = "–" if score.interval[0] >= 0 else " to "
    ends = between.join(format(scale * end, form[1]) for end in score.interval)
    return f"{format(scale * score.mean, '+' * gain + form[0])} [dim]({ends})[/]"
