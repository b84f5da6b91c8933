"""An evaluation as tables for the console, and as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cotune.experiments.evaluate.evaluating import Column, Evaluation, SetResult
from cotune.experiments.evaluate.metrics import METRICS, Figure
from cotune.run.json_files import plain
from cotune.utils.tables import plain_table
from cotune.utils.text import one_line

SCHEMA_VERSION = 1


def as_json(evaluation: Evaluation) -> dict[str, Any]:
    """Return plain data: the run, the columns with their prompts, and the figures of each set."""
    return plain(
        {
            "schema_version": SCHEMA_VERSION,
            "kind": "evaluation",
            "name": evaluation.name,
            "strategy": evaluation.strategy,
            "policy": evaluation.policy,
            "seed": evaluation.seed,
            "temperature": evaluation.temperature,
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
            "sets": [_set_json(result) for result in evaluation.sets],
        },
        "evaluation",
    )


def json_text(evaluation: Evaluation) -> str:
    """Return `as_json` as indented ASCII text, which every terminal can print."""
    return json.dumps(as_json(evaluation), indent=2) + "\n"


def _set_json(result: SetResult) -> dict[str, Any]:
    questions = result.questions
    return {
        "name": questions.name,
        "source": questions.source,
        "n": len(questions.tasks),
        "samples": result.samples,
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
        console.print(_table(result, evaluation.columns))
        sampled = ""
        if result.samples:
            sampled = (
                f"; sampled: {result.samples} per question, temperature {evaluation.temperature}"
            )
        console.print(
            f"{len(result.questions.tasks):,} questions; 95 % intervals over questions{sampled}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        for notice in result.notices:
            console.print(notice, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _table(result: SetResult, columns: Sequence[Column]) -> Table:
    """Return a table: columns are prompts; rows are metrics, their statistics, and their strata."""
    title = escape(f"On {result.questions.title}")
    table = plain_table(title, [""], [column.label for column in columns])
    rows = [result.figures[column.name] for column in columns]
    before = ""
    for figures in zip(*rows, strict=True):
        if figures[0].metric != before:
            unit = ", per cent" if _is_share(figures[0]) else ""
            table.add_row(f"[bold]{escape(figures[0].title)}{unit}[/]")
            before = figures[0].metric
        table.add_row(f"  {figures[0].statistic}", *map(_cell, figures))
        if figures[0].statistic.startswith("pass@"):
            continue
        for stratum, (_, n) in figures[0].by_stratum.items():
            means = [_number(figure, figure.by_stratum[stratum][0]) for figure in figures]
            table.add_row(f"    {escape(one_line(stratum))} ({n:,})", *means)
    return table


def _cell(figure: Figure) -> str:
    if figure.interval is None:
        return _number(figure, figure.mean)
    low, high = (_number(figure, end, places=0) for end in figure.interval)
    return f"{_number(figure, figure.mean)} [dim]({low}–{high})[/]"


def _number(figure: Figure, value: float, places: int = 1) -> str:
    """Write a value of a figure: as per cent, or with two places more if it is a reward."""
    return f"{100 * value:.{places}f}" if _is_share(figure) else f"{value:.{places + 2}f}"


def _is_share(figure: Figure) -> bool:
    return figure.title != METRICS["reward"]
