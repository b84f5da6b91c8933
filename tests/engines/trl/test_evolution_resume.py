"""An evolution that is killed in its middle, again and again, is paid once."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cotune.run.costs import CostRow
from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    check_that_they_end_alike,
    numbers,
    run_file,
    run_with_kills,
    with_sections,
)
from tests.policy.tiny import small_policy

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A run file whose evolution before step `at` follows a checkpoint, and where it is killed."""

    content: dict[str, Any]
    at: int
    purpose: str
    kills: tuple[str, ...]


INSPO = Case(
    # Several rounds of one candidate each, from step 2 on.
    with_sections(
        strategy={"candidates": 1, "verification_rounds": 4, "evolve_until": 3},
        training={"steps": 3},
        evaluation={"every": 0, "before": False},
    ),
    at=3,
    purpose="verify",
    kills=(
        "second reply",  # the first reply and its verification are recorded
        "before verify",  # between the second reply and its verification
        "verify",  # the second verification is made, but not yet recorded: it is lost
        "train",  # the phase is whole, its step is not saved
    ),
)
P2O = Case(
    {
        **with_sections(
            training={"steps": 4, "questions_per_step": 4, "micro_batch_size": 6, "save_every": 3},
            evaluation={"every": 0, "before": False},
        ),
        "environment": {"kind": "ladder", "train": 12, "validation": 4, "test": 4},
        "limits": {
            "turns": 1,
            "turn_tokens": 24,
            "observation_tokens": 1,
            "trajectory_tokens": 26,
            "prompt_tokens": 192,
        },
        "strategy": {
            "kind": "p2o",
            "successes_below": 3,
            "hints": {"hard_set_min_count": 2, "dev_size": 4, "budget": 24, "beam": 2},
        },
    },
    at=4,  # the end of the first epoch: 12 questions, 4 a step
    purpose="evolve",
    kills=("second reply", "before third evolve", "evolve", "train"),
)


@dataclass(frozen=True)
class Runs:
    case: Case
    unbroken: RunDir
    broken: RunDir


@pytest.fixture(scope="module", params=[INSPO, P2O], ids=["inspo", "p2o"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder, case = tmp_path_factory.mktemp("runs"), request.param
    world = case.content["environment"]["kind"]
    content = {**case.content, "policy": {"path": small_policy(f"bundled:{world}")}}
    kills = [(place, case.at) for place in case.kills]
    unbroken = run_file(folder, "unbroken", content)
    broken = run_file(folder, "broken", content)
    return Runs(
        case,
        run_with_kills(unbroken, [], folder / "unbroken.calls"),
        run_with_kills(broken, kills, folder / "broken.calls"),
    )


def calls(run: RunDir) -> list[tuple[str, int, int]]:
    """Purpose, step and rollouts of each call that was really made, in all attempts."""
    lines = Path(f"{run.path}.calls").read_text().splitlines()
    return [(w[0], int(w[1]), int(w[2])) for w in map(str.split, lines)]


def call(row: CostRow) -> tuple[str, int, int]:
    return row.kind, row.step, 1 if row.kind == "llm" else row.rollouts


def test_every_kill_was_in_or_after_the_phase(runs: Runs) -> None:
    resumed = [row["from_step"] for row in runs.broken.read_events() if row["kind"] == "resumed"]
    assert resumed == [runs.case.at - 1] * len(runs.case.kills)
    inside = [purpose for purpose, step, _ in calls(runs.unbroken) if step == runs.case.at]
    assert inside.count("llm") >= 2
    assert inside.count(runs.case.purpose) >= 2


def test_no_reply_is_asked_for_twice(runs: Runs) -> None:
    unbroken, broken = Counter(calls(runs.unbroken)), Counter(calls(runs.broken))
    assert not unbroken - broken
    again = (broken - unbroken).elements()
    assert {(purpose, step) for purpose, step, _ in again} == {
        (runs.case.purpose, runs.case.at), ("train", runs.case.at),
    }  # fmt: skip


def test_it_ends_as_the_unbroken_run(runs: Runs) -> None:
    check_that_they_end_alike(runs.broken, runs.unbroken)
    assert len(numbers(runs.unbroken)) == runs.case.content["training"]["steps"]


def test_what_was_used_again_is_committed_and_the_rest_is_not(runs: Runs) -> None:
    rows = runs.broken.read_costs()
    made = Counter(call(row) for row in rows if not row.reused)
    assert made == Counter(calls(runs.broken))
    kept = Counter(call(row) for row in rows if row.committed)
    assert kept == Counter(calls(runs.unbroken))
    assert any(row.reused for row in rows)
