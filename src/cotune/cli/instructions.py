"""`cotune instructions`: show a run's instructions, their lineage and their scores."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cotune.errors import ConfigError
from cotune.run.best import read_best
from cotune.run.lineage import InstructionRow, best_instruction, instruction_rows
from cotune.run.run_dir import RunDir
from cotune.utils.text import one_line, printable


def show_instructions(folder: Path, console: Console) -> None:
    """Print the instructions of a run as a table, and their texts.

    Raises:
        ConfigError: not a run folder, or one without instructions so far.
    """
    rows = _rows(folder)
    console.print(instruction_table(rows))
    if (kept := read_best(RunDir.open(folder).best_path)) is not None:
        console.print()
        console.print(one_line(kept.statement()), markup=False, highlight=False)
    for row in rows:
        console.print()
        console.print(f"{_name(row)}: {one_line(row.text)}", markup=False, highlight=False)


def print_instructions_json(folder: Path, out: TextIO | None = None) -> None:
    """Write a run's instructions as a JSON list in ASCII. Raises the errors of `show_instructions`.

    Args:
        out: standard output by default.
    """
    rows = [asdict(row) for row in _rows(folder)]
    # ASCII JSON escapes every character that a terminal could interpret.
    (sys.stdout if out is None else out).write(f"{json.dumps(rows, indent=2)}\n")


def print_best_instruction(folder: Path, out: TextIO | None = None) -> None:
    """Write the raw text of the best instruction; to a terminal, without control characters.

    Args:
        out: standard output by default.

    Raises:
        ConfigError: not a run folder, or one without a best instruction so far.
    """
    to = sys.stdout if out is None else out
    text = best_instruction(RunDir.open(folder))
    # A lone surrogate has no UTF-8 form.
    raw = text.encode(errors="backslashreplace").decode()
    to.write((printable(raw) if to.isatty() else raw) + "\n")


def instruction_table(rows: list[InstructionRow]) -> Table:
    """Return a table with one row per instruction, oldest first; best in bold, pruned ones dim."""
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for name in ("id", "parent", "origin"):
        table.add_column(name, no_wrap=True)
    for name in ("born", "weight", "rollouts", "score", "parent's", "pruned"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = (
            _name(row),
            row.parent or "",
            row.origin,
            str(row.born),
            _number(row.weight),
            f"{row.observed_rollouts:,}",
            _number(row.score),
            _number(row.parent_score),
            _pruned(row),
        )
        style = "bold" if row.best else ("dim" if row.pruned is not None else "")
        table.add_row(*(Text(one_line(cell)) for cell in cells), style=style)
    weighed = any(row.weight is not None for row in rows)
    table.caption = (
        "* the best; weights and rollouts are as of an instruction's last step in the population"
        if weighed
        else "* the only one: a static instruction is not weighed"
        if len(rows) == 1
        else "* the best; scores are from verification, or for GEPA from its dev questions"
    )
    table.caption_justify = "left"
    return table


def _pruned(row: InstructionRow) -> str:
    if row.pruned is None:
        return ""
    return f"{row.pruned}" if row.observed_rollouts else f"{row.pruned}, never drawn"


def _name(row: InstructionRow) -> str:
    return one_line(f"{row.id} *" if row.best else row.id)


def _rows(folder: Path) -> list[InstructionRow]:
    rows = instruction_rows(RunDir.open(folder))
    if not rows:
        raise ConfigError(
            f"{folder}: holds no instruction yet; a method that evolves them has one after its first "
            "step, any other method when it is finished"
        )
    return rows


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
