"""An evaluation as tables for the console."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from cotune.experiments.evaluate.evaluating import Column, Evaluation, SetResult
from cotune.experiments.evaluate.metrics import METRICS
from cotune.utils.tables import Cell, Scores, Table, on_console
from cotune.utils.text import one_line


def show(evaluation: Evaluation, console: Console) -> None:
    """Print a table for each set, and the notes on its figures."""
    for result in evaluation.sets:
        head = [Cell(f"On {result.title}"), *(Cell(column.label) for column in evaluation.columns)]
        console.print(on_console(Table(head, list(_rows(result, evaluation.columns)))))
        basis = f"{result.n:,} questions; 95 % intervals over questions"
        if result.samples:
            basis += (
                f"; sampled: {result.samples} per question, temperature {evaluation.temperature}"
            )
        console.print(basis, markup=False, highlight=False, soft_wrap=True)
        for notice in map(one_line, result.notices):
            console.print(notice, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _rows(result: SetResult, columns: Sequence[Column]) -> Iterator[list[Cell]]:
    """Yield the metrics, each with its statistics, and these with their strata; prompts are columns."""
    metric = ""
    for figures in zip(*map(result.of, columns), strict=True):
        first = figures[0]
        form = Scores(first.title != METRICS["reward"])
        if first.metric != metric:
            yield [Cell(first.title)]
            metric = first.metric
        yield [Cell(first.statistic), *(form.cell(each.mean, each.interval) for each in figures)]
        if not first.statistic.startswith("pass@"):
            for stratum, of in first.by_stratum.items():
                means = [form.cell(each.by_stratum[stratum]["mean"]) for each in figures]
                yield [Cell(f"· {stratum} ({of['n']:,})"), *means]
