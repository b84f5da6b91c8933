"""An evaluation as tables for the console, and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from cotune.experiments.evaluate.evaluating import Column, Evaluation, SetResult
from cotune.experiments.evaluate.metrics import METRICS, Figure
from cotune.run.json_files import plain
from cotune.utils.tables import Cell, Scores, Table, on_console
from cotune.utils.text import one_line

SCHEMA_VERSION = 1


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return plain data: the run, the columns with their prompts, and the figures of each set."""
    return plain(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": "evaluation",
            **vars(evaluation),
            "created": round(evaluation.created, 3),
            "columns": [
                {
                    "name": column.name,
                    "label": column.label,
                    "instruction": column.prompt.instruction,
                    "hint": column.prompt.hint,
                    "trained": column.trained,
                }
                for column in evaluation.columns
            ],
            "sets": [_set_json(result, evaluation.samples) for result in evaluation.sets],
        },
        "evaluation",
    )


def _set_json(result: SetResult, samples: int) -> dict[str, Any]:
    questions = result.questions
    return {
        "name": questions.name,
        "source": questions.source,
        "n": len(questions.tasks),
        "samples": samples,
        "notices": list(result.notices),
        "figures": [
            {
                "column": column,
                **vars(figure),
                "by_stratum": {
                    name: {"mean": mean, "n": n} for name, (mean, n) in figure.by_stratum.items()
                },
            }
            for column, figures in result.figures.items()
            for figure in figures
        ],
    }


def show(evaluation: Evaluation, console: Console) -> None:
    """Print a table for each set, and the notes on its figures."""
    for result in evaluation.sets:
        heads = [Cell(column.label) for column in evaluation.columns]
        rows = list(_rows(result, evaluation.columns))
        console.print(on_console(Table([Cell(f"On {result.questions.title}"), *heads], rows)))
        sampled = ""
        if evaluation.samples:
            sampled = f"; sampled: {evaluation.samples} per question, temperature {evaluation.temperature}"
        basis = f"{len(result.questions.tasks):,} questions; 95 % intervals over questions{sampled}"
        console.print(basis, markup=False, highlight=False, soft_wrap=True)
        for notice in map(one_line, result.notices):
            console.print(notice, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _rows(result: SetResult, columns: Sequence[Column]) -> Iterator[list[Cell]]:
    """Yield the metrics, each with its statistics, and these with their strata; prompts are columns."""
    metric = ""
    for figures in zip(*(result.figures[column.name] for column in columns), strict=True):
        first: Figure = figures[0]
        form = Scores(first.title != METRICS["reward"])
        if first.metric != metric:
            yield [Cell(first.title)]
            metric = first.metric
        yield [Cell(first.statistic), *(form.cell(each.mean, each.interval) for each in figures)]
        if not first.statistic.startswith("pass@"):
            for stratum, (_, n) in first.by_stratum.items():
                means = [form.cell(each.by_stratum[stratum][0]) for each in figures]
                yield [Cell(f"· {stratum} ({n:,})"), *means]
