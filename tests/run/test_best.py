"""The record of what a run keeps, and the instructions that it was chosen from."""

import json
from pathlib import Path

import pytest

from cotune.errors import ConfigError
from cotune.run.best import BestRecord, instruction_rows, read_best
from cotune.run.json_files import write_atomic
from cotune.run.record import Record


@pytest.mark.parametrize(
    ("fields", "statement"),
    [
        (
            {"validated": False, "trained": 4},
            "Kept: the policy of step 4 of 4 with instruction i2, the last one, not checked: nothing was "
            "evaluated on validation",
        ),
        (
            {"validated": True, "em": 0.5, "observed_steps": 2, "observed_rollouts": 1200, "runner_up": "i1",
             "too_close_to_call": True, "interval": (0.25, 0.75)},
            "Kept: the policy of step 4 with instruction i2 (observed in 2 steps, 1,200 rollouts; too "
            "close to i1 to call), the best on validation with exact match 0.500 (95 %: 0.250 to 0.750)",
        ),
        (
            {"validated": True, "em": 0.5, "initial_em": 0.5, "instruction_id": "i0",
             "interval": (0.25, 0.75),
             "replaced": BestRecord(instruction="Do better.", instruction_id="i3", em=0.25,
                                 interval=(0.125, 0.5))},
            "Kept: the policy of step 4 with instruction i0, the best on validation with exact match "
            "0.500 (95 %: 0.250 to 0.750); instruction i3 scores 0.250 there",
        ),
    ],
)  # fmt: skip
def test_a_record_says_what_is_kept_and_why(
    fields: dict[str, object], statement: str, tmp_path: Path
) -> None:
    defaults = {"instruction": "Do.", "instruction_id": "i2", "step": 4}
    record = BestRecord(**defaults | fields)  # type: ignore[arg-type]
    assert record.statement() == statement
    record.write(tmp_path)
    assert read_best(tmp_path) == record


def test_a_record_of_another_version(tmp_path: Path) -> None:
    assert read_best(tmp_path) is None
    (tmp_path / "best.json").write_text('{"schema_version": 1, "em": 0.5, "instruction": "Do."}')
    assert read_best(tmp_path) == BestRecord(em=0.5, instruction="Do.")
    (tmp_path / "best.json").write_text('{"schema_version": 2, "instruction": "Do."}')
    with pytest.raises(ConfigError, match=r"cannot be read .*schema_version"):
        read_best(tmp_path)


def add_birth(run: Record, number: int, parent: str | None, text: str = "", step: int = 0) -> None:
    run.event("instruction_born", step, id=f"i{number}", text=text or f"Do {number}.", born=step,
              parent=parent, origin="initial" if parent is None else "reflection", critique="why",
              score=None if parent is None else 0.75, parent_score=None if parent is None else 0.5,
              )  # fmt: skip


def add_population(run: Record, step: int, **weights: float) -> None:
    run.event("population", step, members=[
        {"id": name, "weight": weight, "probability": 0.5, "observed": weight, "observed_rollouts": 10 * step}
        for name, weight in weights.items()
    ])  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Record:
    run = Record.create(tmp_path / "run", {"name": "demo"})
    add_birth(run, 0, None)
    add_birth(run, 1, "i0")
    add_population(run, 1, i0=0.25, i1=0.125)
    add_birth(run, 2, "i1", step=2)
    run.event("instruction_pruned", 2, id="i1", weight=0.125, cause="prune")
    add_population(run, 2, i0=0.25, i2=0.5)
    return run


def keep_best(run: Record, instruction_id: str, text: str) -> None:
    run.best_path.mkdir()
    best = {"schema_version": 1, "instruction_id": instruction_id, "instruction": text, "hint": ""}
    write_atomic(run.best_path / "best.json", json.dumps(best))


def test_rows_of_instructions(run: Record) -> None:
    # They have the last that is known of each.
    first, second, third = instruction_rows(run)
    assert (first.weight, first.observed_rollouts, first.pruned) == (0.25, 20, None)
    assert (second.weight, second.observed_rollouts, second.pruned) == (0.125, 10, 2)
    assert (third.weight, third.score, third.parent_score, third.born) == (0.5, 0.75, 0.5, 2)
    assert [row.parent for row in (first, second, third)] == [None, "i0", "i1"]
    assert [row.best for row in (first, second, third)] == [False, False, True]
    # Weights that an evolution reset do not rank.
    members = [
        {"id": name, "weight": 0.0, "observed": observed, "observed_rollouts": rollouts}
        for name, observed, rollouts in (("i0", 0.25, 20), ("i2", 0.5, 10), ("i3", None, 5))
    ]
    run.event("population", 3, members=members)
    assert [row.id for row in instruction_rows(run) if row.best] == ["i2"]
    # The best is the kept one before the heaviest.
    assert [row.text for row in instruction_rows(run) if row.best] == ["Do 2."]
    keep_best(run, "i0", "Do 0.")
    assert [row.id for row in instruction_rows(run) if row.best] == ["i0"]


def test_a_run_without_lineage_has_the_instruction_that_it_kept(tmp_path: Path) -> None:
    run = Record.create(tmp_path / "run", {"name": "demo"})
    assert instruction_rows(run) == []
    keep_best(run, "i0", "Answer.")
    (row,) = instruction_rows(run)
    assert (row.id, row.text, row.best, row.weight) == ("i0", "Answer.", True, None)
