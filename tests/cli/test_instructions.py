"""`cotune instructions`, and the rows behind it."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from cotune.cli.instructions import (
    print_best_instruction,
    print_instructions_json,
    show_instructions,
)
from cotune.errors import ConfigError
from cotune.run.json_files import write_atomic
from cotune.run.lineage import best_instruction, instruction_rows
from cotune.run.record import Record

HOSTILE = "Do [red]this[/]. \x1b[2J\x9b1mNow.\nThen that.\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def born(run: Record, number: int, parent: str | None, text: str = "", step: int = 0) -> None:
    run.event("instruction_born", step, id=f"i{number}", text=text or f"Do {number}.", born=step,
              parent=parent, origin="initial" if parent is None else "reflection", critique="why",
              score=None if parent is None else 0.75, parent_score=None if parent is None else 0.5,
              )  # fmt: skip


def population(run: Record, step: int, **weights: float) -> None:
    run.event("population", step, members=[
        {"id": name, "weight": weight, "probability": 0.5, "observed": weight, "observed_rollouts": 10 * step}
        for name, weight in weights.items()
    ])  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Record:
    run = Record.create(tmp_path / "run", {"name": "demo"})
    born(run, 0, None)
    born(run, 1, "i0")
    population(run, 1, i0=0.25, i1=0.125)
    born(run, 2, "i1", HOSTILE, step=2)
    run.event("instruction_pruned", 2, id="i1", weight=0.125, cause="prune")
    population(run, 2, i0=0.25, i2=0.5)
    return run


def keep_best(run: Record, instruction_id: str, text: str) -> None:
    run.best_path.mkdir()
    write_atomic(run.best_path / "instruction.txt", text + "\n")
    best = {"schema_version": 1, "instruction_id": instruction_id, "instruction": text, "hint": ""}
    write_atomic(run.best_path / "best.json", json.dumps(best))


def shown(run: Record, width: int = 100) -> str:
    out = io.StringIO()
    show_instructions(run.path, Console(file=out, width=width))
    return out.getvalue()


def test_rows_have_the_last_that_is_known_of_each(run: Record) -> None:
    first, second, third = instruction_rows(run)
    assert (first.weight, first.observed_rollouts, first.pruned) == (0.25, 20, None)
    assert (second.weight, second.observed_rollouts, second.pruned) == (0.125, 10, 2)
    assert (third.weight, third.score, third.parent_score, third.born) == (0.5, 0.75, 0.5, 2)
    assert [row.parent for row in (first, second, third)] == [None, "i0", "i1"]
    assert [row.best for row in (first, second, third)] == [False, False, True]


def test_the_best_is_the_kept_one_before_the_heaviest(run: Record) -> None:
    assert best_instruction(run) == HOSTILE
    keep_best(run, "i0", "Do 0.")
    assert [row.id for row in instruction_rows(run) if row.best] == ["i0"]
    assert best_instruction(run) == "Do 0."


def test_weights_that_an_evolution_reset_do_not_rank(run: Record) -> None:
    members = [
        {"id": name, "weight": 0.0, "observed": observed, "observed_rollouts": rollouts}
        for name, observed, rollouts in (("i0", 0.25, 20), ("i2", 0.5, 10), ("i3", None, 5))
    ]
    run.event("population", 3, members=members)
    assert [row.id for row in instruction_rows(run) if row.best] == ["i2"]


def test_a_run_without_lineage_has_the_instruction_that_it_kept(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", {"name": "demo"})
    for show in (lambda: shown(run), lambda: print_instructions_json(run.path, io.StringIO())):
        with pytest.raises(ConfigError, match="holds no instruction yet"):
            show()
    with pytest.raises(ConfigError, match="has no best instruction yet"):
        print_best_instruction(run.path, io.StringIO())
    keep_best(run, "i0", "Answer.")
    (row,) = instruction_rows(run)
    assert (row.id, row.text, row.best, row.weight) == ("i0", "Answer.", True, None)


def test_an_instruction_that_was_pruned_unseen_is_said_to_be(run: Record) -> None:
    born(run, 3, "i0")
    run.event("instruction_pruned", 3, id="i3", weight=0.0, observed_rollouts=0, cause="prune")
    assert "3, never drawn" in shown(run)


def test_what_is_shown(run: Record) -> None:
    lines = shown(run).splitlines()
    assert lines[0].split() == [
        "id", "parent", "origin", "born", "weight", "rollouts", "score", "parent's", "pruned",
    ]  # fmt: skip
    assert lines[1].split() == ["i0", "initial", "0", "0.250", "20"]
    assert lines[2].split() == [
        "i1", "i0", "reflection", "0", "0.125", "10", "0.750", "0.500", "2",
    ]  # fmt: skip
    assert lines[3].split()[:4] == ["i2", "*", "i1", "reflection"]
    assert "i2 *: Do [red]this[/]. [2J1mNow. Then that." in lines
    assert "\x1b" not in shown(run)
    assert "\x9b" not in shown(run)


def test_the_best_text_is_raw_but_for_a_terminal(run: Record) -> None:
    plain, terminal = io.StringIO(), Terminal()
    print_best_instruction(run.path, plain)
    assert plain.getvalue() == HOSTILE + "\n"
    print_best_instruction(run.path, terminal)
    assert terminal.getvalue() == "Do [red]this[/]. [2J1mNow.\nThen that.\n"


def test_a_lone_surrogate_can_be_printed(run: Record) -> None:
    born(run, 3, "i0", "cut \ud83d", step=3)
    population(run, 3, i3=1.0)
    out = io.StringIO()
    print_best_instruction(run.path, out)
    assert out.getvalue().encode() == b"cut \\ud83d\n"


def test_json_holds_all_and_nothing_a_terminal_acts_on(run: Record) -> None:
    out = Terminal()
    print_instructions_json(run.path, out)
    rows = json.loads(out.getvalue())
    assert [row["id"] for row in rows] == ["i0", "i1", "i2"]
    assert rows[2]["text"] == HOSTILE
    assert rows[2]["critique"] == "why"
    assert all(c == "\n" or c.isprintable() for c in out.getvalue())
