import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import BudgetError
from cotune.run.costs import PURPOSES, CostRow
from cotune.run.record import Record
from cotune.run.run_dir import RunDir


def call(record: Record, cost: float, error: str = "") -> None:
    """Add an LLM call of 10 + 4 tokens."""
    record.charge("m", prompt_tokens=10, completion_tokens=4, money=cost, error=error)


def test_rows_whose_results_are_used_again_are_committed_and_paid_once() -> None:
    record = Record()
    record.begin_attempt(None)
    record.step = 3
    record.count("train", 1, 1)
    call(record, 5.0, error="HTTP status 500")  # a try and its retry: one reply
    call(record, 5.0)
    rows = [row.line() for row in record.cost_rows[1:]]
    for _ in range(2):  # cut off and taken up twice
        record.begin_attempt(2)
        record.step = 3
        record.count_again(rows)
    totals = record.totals()
    assert totals.rollouts["train"] == 0
    assert (totals.llm_calls, totals.llm_failed, totals.money) == (2, 1, 10.0)


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 6),  # step
        st.sampled_from([*PURPOSES, "done", "failed"]),
        st.integers(0, 1000),
    ),
    max_size=8,
)


@given(
    first=ENTRIES, resumes=st.lists(st.tuples(st.none() | st.integers(0, 6), ENTRIES), max_size=4)
)
def test_totals_agree_with_a_list_that_each_resume_cuts(
    first: list[tuple[int, str, int]], resumes: list[tuple[int | None, list[tuple[int, str, int]]]]
) -> None:
    record = Record()
    committed: list[tuple[int, str, int]] = []
    money = 0
    for resumed_from, entries in [(None, first), *resumes]:
        record.begin_attempt(resumed_from)
        committed = [] if resumed_from is None else [e for e in committed if e[0] <= resumed_from]
        for step, kind, amount in entries:
            record.step = step
            if kind in PURPOSES:
                record.count(kind, amount, 2 * amount, amount)
            else:
                money += amount
                record.charge(
                    "m",
                    prompt_tokens=amount,
                    completion_tokens=1,
                    money=amount,
                    error="x" if kind == "failed" else "",
                )
        committed += entries

    totals = record.totals()
    for purpose in PURPOSES:
        spent = sum(amount for _, kind, amount in committed if kind == purpose)
        assert totals.rollouts[purpose] == spent
        assert totals.generated_tokens[purpose] == 2 * spent
        assert totals.seconds[purpose] == spent
    calls = [(kind, amount) for _, kind, amount in committed if kind not in PURPOSES]
    assert totals.llm_calls == len(calls)
    assert totals.llm_failed == sum(kind == "failed" for kind, _ in calls)
    assert totals.money == money
    assert sum(row.committed for row in record.read_costs()) == len(committed)


def test_rows_tell_what_was_written(tmp_path: Path) -> None:
    record = Record.create(tmp_path / "run", {})
    record.begin_attempt(None)
    record.step = 3
    record.count("evolve", 4, 40, 1.5)
    record.charge("m", prompt_tokens=5, completion_tokens=6, error="no text", estimated=True)
    rollouts, llm = record.read_costs()
    assert rollouts == CostRow(
        attempt=1, step=3, kind="evolve", rollouts=4, generated_tokens=40, seconds=1.5
    )
    assert (llm.kind, llm.model, llm.error) == ("llm", "m", "no text")
    assert (llm.prompt_tokens, llm.completion_tokens, llm.estimated) == (5, 6, True)
    record.begin_attempt(1)
    reader = RunDir.open(record.path)
    assert reader.totals() == record.totals()
    assert reader.read_costs() == record.read_costs() == Record.open(reader.path).read_costs()
    assert [row.committed for row in reader.read_costs()] == [False, False]


# Ten times 0.1 is below 1 in floats.
@pytest.mark.parametrize(("budget", "calls"), [(0.3, 3), (1.0, 10)])
def test_a_budget_pays_for_as_many_calls_as_it_is_worth(budget: float, calls: int) -> None:
    record = Record()
    record.begin_attempt(None)
    for _ in range(calls):
        record.check_budget(budget)
        call(record, 0.1)
    message = rf"have cost {budget:g} of a budget of {budget:g}: raise llm\.budget"
    with pytest.raises(BudgetError, match=message):
        record.check_budget(budget)
    record.check_budget(budget + 0.01)
    record.check_budget(None)


KILLED = """
import os, signal, sys
from cotune.run.record import Record
record = Record.create(sys.argv[1], {})
record.begin_attempt(None)
record.step = 4
record.count("train", 8, 80)
record.charge("m", prompt_tokens=1, completion_tokens=2, money=3.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run"
    child = subprocess.run([sys.executable, "-c", KILLED, os.fspath(path)], check=False)
    assert child.returncode == -signal.SIGKILL
    with (path / "costs.jsonl").open("ab") as file:
        file.write(b'{"attempt": 1, "step": 4, "kind": "llm", "mon')  # torn by the kill
    record = Record.open(path)
    totals = record.totals()
    assert (totals.rollouts["train"], totals.generated_tokens["train"]) == (8, 80)
    assert (totals.llm_calls, totals.money) == (1, 3.0)
    assert record.begin_attempt(3) == 2
    totals = record.totals()
    assert (totals.rollouts["train"], totals.llm_calls) == (0, 0)
    assert totals.money == 3.0
    with pytest.raises(BudgetError):
        record.check_budget(3.0)
    record.count("train", 8, 80)
    assert len(RunDir.open(path).read_costs()) == 3
