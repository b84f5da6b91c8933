import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import BudgetError, ConfigError
from cotune.run.ledger import PURPOSES, Ledger


def call(ledger: Ledger, cost: float, error: str = "") -> None:
    """Add an LLM call of 10 + 4 tokens."""
    ledger.add_call("m", prompt_tokens=10, completion_tokens=4, cost=cost, error=error)


def test_compute_counts_committed_rows_once_and_money_counts_all() -> None:
    ledger = Ledger(":memory:")
    assert ledger.begin_attempt(None) == 1
    for step in (1, 2, 3):
        ledger.set_step(step)
        ledger.add_rollouts("train", 8, 100 * step, 2.0)
        call(ledger, 1.0)
    assert ledger.begin_attempt(2) == 2  # step 3 is done again
    assert (ledger.attempt, ledger.step) == (2, 2)
    for step in (3, 4, 5):
        ledger.set_step(step)
        ledger.add_rollouts("train", 8, 100 * step, 2.0)
        call(ledger, 10.0, error="HTTP status 500" if step == 5 else "")
    assert ledger.begin_attempt(4) == 3  # step 5 is done again
    ledger.set_step(5)
    ledger.add_rollouts("verify", 3, 7, 0.5)
    call(ledger, 100.0)

    totals = ledger.totals()
    assert totals.rollouts == {"train": 4 * 8, "verify": 3, "evolve": 0, "evaluate": 0}
    assert totals.generated_tokens["train"] == 100 + 200 + 300 + 400
    assert totals.seconds == {"train": 8.0, "verify": 0.5, "evolve": 0.0, "evaluate": 0.0}
    assert (totals.llm_calls, totals.llm_failed) == (5, 0)
    assert (totals.llm_prompt_tokens, totals.llm_completion_tokens) == (50, 20)
    assert totals.money == 3 * 1.0 + 3 * 10.0 + 100.0
    kept = [(row.attempt, row.step) for row in ledger.rows() if row.committed and row.kind == "llm"]
    assert kept == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)]


def test_starting_from_scratch_commits_nothing_earlier() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    ledger.add_rollouts("evaluate", 5, 50)  # step 0, before the first batch
    call(ledger, 1.0)
    ledger.begin_attempt(None)
    assert ledger.totals().rollouts["evaluate"] == 0
    assert ledger.totals().llm_calls == 0
    assert ledger.totals().money == 1.0


def test_a_resume_far_back_drops_rows_of_all_earlier_attempts() -> None:
    ledger = Ledger(":memory:")
    for resumed_from, step in ((None, 1), (1, 9), (1, 2)):
        ledger.begin_attempt(resumed_from)
        ledger.set_step(step)
        ledger.add_rollouts("train", 10**step, 0)
    ledger.begin_attempt(1)
    assert ledger.totals().rollouts["train"] == 10


def test_rows_whose_results_are_used_again_are_committed_and_paid_once() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    ledger.set_step(3)
    ledger.add_rollouts("train", 1, 1)
    with ledger.booking() as rows:
        ledger.add_rollouts("verify", 4, 40, 2.0)
        call(ledger, 5.0, error="HTTP status 500")  # a try and its retry: one reply
        call(ledger, 5.0)
    assert rows == [2, 3, 4]
    ledger.add_rollouts("verify", 9, 90)
    for _ in range(2):  # cut off and taken up twice
        ledger.begin_attempt(2)
        ledger.set_step(3)
        ledger.adopt(rows)
    totals = ledger.totals()
    assert (totals.rollouts["train"], totals.rollouts["verify"]) == (0, 4)
    assert (totals.generated_tokens["verify"], totals.seconds["verify"]) == (40, 2.0)
    assert (totals.llm_calls, totals.llm_failed, totals.money) == (2, 1, 10.0)
    ledger.begin_attempt(2)
    ledger.set_step(4)
    ledger.adopt(rows)  # of another step: none of its rows
    assert ledger.totals().rollouts["verify"] == 0


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
    first: list[tuple[int, str, int]],
    resumes: list[tuple[int | None, list[tuple[int, str, int]]]],
) -> None:
    ledger = Ledger(":memory:")
    kept: list[tuple[int, str, int]] = []
    money = 0
    for resumed_from, entries in [(None, first), *resumes]:
        ledger.begin_attempt(resumed_from)
        kept = [] if resumed_from is None else [e for e in kept if e[0] <= resumed_from]
        for step, kind, amount in entries:
            ledger.set_step(step)
            if kind in PURPOSES:
                ledger.add_rollouts(kind, amount, 2 * amount, amount)
            else:
                money += amount
                ledger.add_call(
                    "m",
                    prompt_tokens=amount,
                    completion_tokens=1,
                    cost=amount,
                    error="x" if kind == "failed" else "",
                )
        kept += entries

    totals = ledger.totals()
    for purpose in PURPOSES:
        spent = sum(amount for _, kind, amount in kept if kind == purpose)
        assert totals.rollouts[purpose] == spent
        assert totals.generated_tokens[purpose] == 2 * spent
        assert totals.seconds[purpose] == spent
    calls = [(kind, amount) for _, kind, amount in kept if kind not in PURPOSES]
    prompts = [amount for _, amount in calls]
    assert totals.llm_calls == len(calls)
    assert totals.llm_failed == sum(kind == "failed" for kind, _ in calls)
    assert (totals.llm_prompt_tokens, totals.llm_completion_tokens) == (sum(prompts), len(prompts))
    assert totals.money == money
    assert sum(row.committed for row in ledger.rows()) == len(kept)


def test_rows_tell_what_was_written() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    ledger.set_step(3)
    ledger.add_rollouts("evolve", 4, 40, 1.5)
    ledger.add_call(
        "m",
        prompt_tokens=5,
        completion_tokens=6,
        cost=0.5,
        error="no text",
        estimated=True,
        seconds=2.5,
    )
    rollouts, llm = ledger.rows()
    assert (rollouts.kind, rollouts.rollouts, rollouts.generated_tokens) == ("evolve", 4, 40)
    assert (rollouts.attempt, rollouts.step, rollouts.committed) == (1, 3, True)
    assert (rollouts.state, rollouts.seconds, rollouts.money) == ("done", 1.5, 0.0)
    assert (llm.kind, llm.model, llm.state, llm.error) == ("llm", "m", "failed", "no text")
    assert (llm.prompt_tokens, llm.completion_tokens, llm.estimated) == (5, 6, True)
    assert (llm.money, llm.seconds) == (0.5, 2.5)
    assert sum(row.estimated for row in ledger.rows()) == 1


def test_a_budget_of_three_calls_pays_for_three_calls() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    for _ in range(3):
        ledger.check_budget(0.3)
        call(ledger, 0.1)
    with pytest.raises(BudgetError, match=r"have cost 0\.3 of a budget of 0\.3: raise llm\.budget"):
        ledger.check_budget(0.3)
    ledger.check_budget(0.31)
    ledger.check_budget(None)


def test_a_budget_whose_sum_of_prices_is_rounded_down_is_used_up() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    for _ in range(10):  # ten times 0.1 is below 1 in floats
        ledger.check_budget(1.0)
        call(ledger, 0.1)
    with pytest.raises(BudgetError):
        ledger.check_budget(1.0)


def test_the_budget_counts_money_of_attempts_that_were_thrown_away() -> None:
    ledger = Ledger(":memory:")
    ledger.begin_attempt(None)
    ledger.set_step(5)
    call(ledger, 0.9)
    ledger.begin_attempt(0)
    assert ledger.totals().llm_calls == 0
    with pytest.raises(BudgetError):
        ledger.check_budget(0.9)


KILLED = """
import os, signal, sys
from cotune.run.ledger import Ledger
ledger = Ledger(sys.argv[1])
ledger.begin_attempt(None)
ledger.set_step(4)
ledger.add_rollouts("train", 8, 80)
ledger.add_call("m", prompt_tokens=1, completion_tokens=2, cost=3.0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    child = subprocess.run([sys.executable, "-c", KILLED, os.fspath(path)], check=False)
    assert child.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        totals = ledger.totals()
        assert (totals.rollouts["train"], totals.generated_tokens["train"]) == (8, 80)
        assert (totals.llm_calls, totals.money) == (1, 3.0)
        assert ledger.begin_attempt(3) == 2
        totals = ledger.totals()
        assert (totals.rollouts["train"], totals.llm_calls) == (0, 0)
        assert totals.money == 3.0
        with pytest.raises(BudgetError):
            ledger.check_budget(3.0)


def test_a_second_reader_sees_what_a_writer_wrote(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as writer, Ledger(path) as reader:
        writer.begin_attempt(None)
        writer.add_rollouts("train", 2, 3)
        assert reader.totals() == writer.totals()
        assert reader.rows() == writer.rows()
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_another_schema_version_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="schema version 99") as caught:
        Ledger(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database, but long enough to be read as one" * 9])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"ledger\.sqlite"):
        Ledger(path)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(ConfigError, match="schema version 0"):
        Ledger(foreign)
    with pytest.raises(ConfigError, match="missing"):
        Ledger(tmp_path / "missing" / "ledger.sqlite")


def test_misuse_is_refused() -> None:
    ledger = Ledger(":memory:")
    with pytest.raises(RuntimeError, match="begin_attempt"):
        ledger.add_rollouts("train", 1, 1)
    with pytest.raises(RuntimeError, match="begin_attempt"):
        ledger.add_call("m")
    with pytest.raises(ConfigError, match="resuming from step 3"):
        ledger.begin_attempt(3)
    assert ledger.begin_attempt(None) == 1
    with pytest.raises(ValueError, match="purpose is 'trian'"):
        ledger.add_rollouts("trian", 1, 1)
    with pytest.raises(ValueError, match="rollouts is -1"):
        ledger.add_rollouts("train", -1, 1)
    with pytest.raises(ValueError, match="cost is nan"):
        ledger.add_call("m", cost=float("nan"))
    with pytest.raises(ValueError, match="step is -1"):
        ledger.set_step(-1)
    with pytest.raises(ValueError, match="resumed_from is -1"):
        ledger.begin_attempt(-1)
    assert ledger.rows() == []
