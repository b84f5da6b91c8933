"""The table of a method's quadrants: initial and trained weights under the initial and the best instruction."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotune.errors import ConfigError
from cotune.experiments.evaluate.quadrant_table import (
    DIVERGENCE,
    PROMPT_LABELS,
    WEIGHT_LABELS,
    Line,
    blocks,
    coincidences,
    columns,
    notes,
)
from cotune.experiments.evaluate.quadrants import Quadrants
from cotune.experiments.report.pages import label
from cotune.experiments.report.recorded_run import RecordedRun
from cotune.methods.registry import method_of
from cotune.run.scores import wilson
from cotune.utils.text import command_on


@dataclass(frozen=True)
class Cell:
    """A number with its 95 % interval, None if unknown; `kind` is "score", "gain" or "nats"."""

    value: float
    interval: Sequence[float] | None
    kind: str


@dataclass(frozen=True)
class QuadrantTable:
    """The table of a page.

    Attributes:
        columns: their headings.
        rows: blocks of lines, each block with its heading.
        notes: sentences below it.
        command: what fills in the missing numbers; "" if none is missing.
    """

    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, Sequence[Cell | None]]]]]
    notes: Sequence[str]
    command: str = ""


def quadrant_table(run: RecordedRun, folder: Path) -> QuadrantTable | None:
    """Return a run's quadrants, or else what its own evaluations say about them.

    None if there is nothing, or the method evolves neither instruction nor hints.
    """
    if run.quadrants is not None:
        return _measured(run.quadrants)
    return _recorded(run, folder) if _evolves(run) else None


def _evolves(run: RecordedRun) -> bool:
    try:
        return bool(method_of(label(run.config.get("strategy"))).evolves)
    except ConfigError:  # of a package that is not here
        return False


def _measured(quadrants: Quadrants) -> QuadrantTable:
    def cells(heading: str, line: Line) -> list[Cell | None]:
        kinds = ["nats" if heading == DIVERGENCE else "gain" if g else "score" for g in line.gains]
        pairs = zip(line.cells, kinds, strict=True)
        return [score and Cell(score.mean, score.interval, kind) for score, kind in pairs]

    rows = [
        (heading, [(line.label, cells(heading, line)) for line in lines])
        for heading, lines in blocks(quadrants)
    ]
    return QuadrantTable(columns(quadrants), rows, notes(quadrants))


def _recorded(run: RecordedRun, folder: Path) -> QuadrantTable | None:
    result, same = run.result, run.best == "i0"
    if result.get("em") is None:
        return None

    def cell(name: str) -> Cell | None:
        score, n = result.get(name), result.get("em_n")
        if score is None:
            return None
        return Cell(score, wilson(score, n) if run.shares and n else None, "score")

    before, plain, after = map(cell, ("em_before", "em_initial_instruction", "em"))
    frozen = bool((run.config.get("training") or {}).get("frozen"))
    lines = [
        (WEIGHT_LABELS["initial"], [before] if same else [before, None]),
        (WEIGHT_LABELS["trained"], [after] if same else [plain, after]),
    ]
    if frozen:
        lines = [(WEIGHT_LABELS["initial"], lines[1][1])]
    said = coincidences(same=same, frozen=frozen)
    command = command_on(folder, "evaluate", "--quadrants")
    return QuadrantTable(
        list(PROMPT_LABELS.values())[: 2 - same], [("greedy", lines)], said, command
    )
