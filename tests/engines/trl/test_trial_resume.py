"""A run with candidates on trial that is killed and goes on ends as the unbroken one, and pays for no verification."""

from pathlib import Path

import pytest

from tests.engines.trl.kills import (
    check_that_they_end_alike,
    run_file,
    run_with_kills,
    with_sections,
)
from tests.policy.tiny import small_policy

TRIAL = with_sections(
    strategy={"verification": "trial", "verification_tasks": 6, "verification_rounds": 1},
    training={"steps": 7},
    evaluation={"every": 0, "before": False},
)


@pytest.mark.slow
def test_a_trial_goes_on_where_it_was(tmp_path: Path) -> None:
    content = {**TRIAL, "policy": {"path": small_policy("bundled:ladder")}}
    unbroken = run_with_kills(run_file(tmp_path, "unbroken", content), [])
    # Saved after 2, 4 and 6: with candidates in their trial, while its rollouts are made, and once decided.
    kills = [("log", 3), ("train", 4), ("state", 6), ("train", 7)]
    broken = run_with_kills(run_file(tmp_path, "broken", content), kills)

    assert any(row["kind"] == "trial" for row in unbroken.read_events())
    check_that_they_end_alike(broken, unbroken)
    assert not any(row.kind == "verify" for row in broken.read_costs())
