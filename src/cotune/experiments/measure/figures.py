"""What was measured as figures, means with intervals; their tables and their picture."""

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from cotune.experiments.evaluate.quadrants import divergence_cell
from cotune.experiments.measure.measuring import BEST, CURVES
from cotune.experiments.report.charts import WIDE, Chart, Series, line_chart, style
from cotune.experiments.statistics import ScoreTable, gain, interval
from cotune.run.json_files import Row
from cotune.utils.tables import Cell, Scores, Table

_NOTES = {
    "Drift": "KL from the initial policy in nats, exact over the vocabulary, on one sampled rollout per question of the "
    "policy itself. 95 % intervals over questions, and seeds if there are several.",
    "Other words": "Mean: of each question's scores under all of them.",
    CURVES: "From the initial policy, and from the best one of the run and the tasks before. As many rollouts each; "
    "small: the gain over the initial policy.",
    "All tasks": "Kept: the instruction that the run had then, if its method evolves it.",
}
"""The tables, with what a reader must know of each."""


def figures_of(values: Sequence[ScoreTable]) -> list[Row]:
    """Return all figures as plain data: the mean and its 95 % interval over questions, and seeds if several.

    `gain` is the difference from the first policy of the run that has the figure, with its interval, paired by seed and
    question. What only some seeds of a run have is left out.
    """
    everything: ScoreTable = pd.concat(values)
    seeds = everything.groupby("run")["seed"].nunique()
    firsts: dict[Any, ScoreTable] = {}
    rows: list[Row] = []
    names = ["run", "policy", "table", "figure"]
    for key, scores in everything.groupby(names, sort=False):
        run, _, _, figure = key
        if scores["seed"].nunique() < seeds[run]:
            continue
        ends = interval(scores)
        if figure.startswith("KL"):
            # That of a policy from itself is 0, without a spread.
            ends = (max(0.0, ends[0]), ends[1]) if ends and scores["reward"].any() else None
        first = firsts.setdefault((run, figure), scores)
        row = dict(zip(names, key, strict=True)) | {"mean": scores["reward"].mean()}
        difference = None if first is scores else gain(scores, first)
        rows.append(row | {"interval": ends, "gain": difference, "seeds": seeds[run]})
    return rows


def measure_tables(figures: Sequence[Row]) -> list[Table]:
    """Return a table of each sort of figures: runs and policies × figures."""
    tables = ((name, [row for row in figures if row["table"] == name]) for name in _NOTES)
    return [_table(name, of_table) for name, of_table in tables if of_table]


def _table(name: str, figures: Sequence[Row]) -> Table:
    form = Scores(_are_shares(figures))
    by_name = {(row["run"], row["policy"], row["figure"]): row for row in figures}
    columns = dict.fromkeys(row["figure"] for row in figures)

    def cell(run: str, policy: str, figure: str) -> Cell:
        row = by_name.get((run, policy, figure))
        if row is None:
            return Cell()
        if figure.startswith("KL"):
            return divergence_cell(row["mean"], row["interval"])
        score = form.cell(row["mean"], row["interval"])
        if name != CURVES or row["gain"] is None:
            return score
        gained = form.cell(*row["gain"], change=True)
        return Cell(score.text, f"{gained.text}, {gained.note}", gained.css)

    def rows() -> Iterator[list[Cell]]:
        for run in dict.fromkeys(row["run"] for row in figures):
            yield [Cell(run)]
            for policy in dict.fromkeys(row["policy"] for row in figures if row["run"] == run):
                yield [Cell(policy), *(cell(run, policy, figure) for figure in columns)]

    heads = [Cell(*column.split(", ")) for column in columns]
    return Table([Cell(name), *heads], list(rows()), _NOTES[name])


def _are_shares(figures: Sequence[Row]) -> bool:
    return all(0 <= row["mean"] <= 1 for row in figures if not row["figure"].startswith("KL"))


def drift_chart(figures: Sequence[Row]) -> Chart | None:
    """Draw each run's score against its divergence from the initial policy, under its best instruction."""
    means = {(row["run"], row["policy"], row["figure"]): row["mean"] for row in figures}
    points: dict[str, list[tuple[float, float]]] = {}
    for (run, policy, figure), score in means.items():
        if figure == f"Score, {BEST} instr.":
            divergence = means[run, policy, f"KL per token, {BEST} instr."]
            points.setdefault(run, []).append((divergence, score))
    return line_chart(
        "Score against divergence from the initial policy",
        [Series(run, sorted(of_run), style(i)) for i, (run, of_run) in enumerate(points.items())],
        share=_are_shares(figures),
        x_label="KL per token, nats",
        note="A point is a checkpoint, or the best policy, under the run's best instruction.",
        size=WIDE,
    )
