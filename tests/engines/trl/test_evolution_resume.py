"""An evolution that is killed in its middle, again and again, is paid once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cotune.llm.ledger import Ledger
from cotune.run_dir import RunDir
from tests.engines.trl.kills import arm, learnt, numbers, run_file, run_with_kills, spent

pytestmark = pytest.mark.slow

# Saved after step 2; the phase before step 3 takes several rounds of one candidate each.
SECTIONS: dict[str, dict[str, Any]] = {
    "strategy": {"candidates": 1, "verification_rounds": 4, "evolve_until": 4},
    "training": {"steps": 4},
    "evaluation": {"every": 0, "before": False},
}
KILLS = [
    ("second reply", 3),  # the first reply and its verification are recorded
    ("before verify", 3),  # between the second reply and its verification
    ("verify", 3),  # the second verification is made, but not yet recorded: it is lost
    ("train", 3),  # the phase is whole, its step is not saved
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, RunDir]:
    folder = tmp_path_factory.mktemp("runs")
    return (
        run_with_kills(run_file(folder, "unbroken", **SECTIONS), [], folder / "unbroken.calls"),
        run_with_kills(run_file(folder, "broken", **SECTIONS), KILLS, folder / "broken.calls"),
    )


def calls(run: RunDir) -> Counter[tuple[str, int]]:
    """By purpose and step: what was really rolled out and asked, in all attempts."""
    found: Counter[tuple[str, int]] = Counter()
    for line in Path(f"{run.path}.calls").read_text().splitlines():
        purpose, step, count = line.split()
        found[purpose, int(step)] += int(count)
    return found


def test_every_kill_was_in_or_after_the_phase(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    resumed = [row["from_step"] for row in broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [2] * len(KILLS)
    (evolution,) = [row for row in unbroken.read_events() if row["kind"] == "evolution"]
    assert evolution["rounds"] >= 2
    assert evolution["verified"] >= 2


def test_nothing_of_the_phase_is_asked_twice_but_the_call_that_was_cut(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = map(calls, runs)
    one_candidate = 2 * 3  # and its parent, on three questions
    assert broken - unbroken == Counter({("verify", 3): one_candidate, ("train", 3): 2 * 3})
    assert not unbroken - broken


def test_it_ends_as_the_unbroken_run(runs: tuple[RunDir, RunDir]) -> None:
    unbroken, broken = runs
    assert numbers(broken) == numbers(unbroken)
    assert len(numbers(unbroken)) == 4
    assert learnt(broken) == learnt(unbroken)
    assert arm(broken) == arm(unbroken)
    assert not (broken.path / "evolution").exists()


def test_what_was_used_again_is_committed_and_the_rest_is_not(
    runs: tuple[RunDir, RunDir],
) -> None:
    unbroken, broken = runs
    assert spent(broken) == spent(unbroken)
    with Ledger(broken.ledger_path) as ledger:
        lost = [(row.kind, row.rollouts) for row in ledger.rows() if not row.committed]
    assert sorted(lost) == [("train", 6), ("verify", 6)]
