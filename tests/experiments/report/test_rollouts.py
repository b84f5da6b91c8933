"""Groups side by side and turns by author, from stored rollouts."""

from dataclasses import replace
from pathlib import Path

import pytest

from cotune.experiments.report.run_report import MOST_COLUMNS, MOST_TURNS, some_groups, write_report
from cotune.run.record import Record
from cotune.types import Turn
from tests.experiments.report.pages import check, rollout


@pytest.fixture
def run(tmp_path: Path) -> Record:
    """A run that has just begun."""
    return Record.create(tmp_path / "run", {"name": "geo", "strategy": {"kind": "p2o"}, "seed": 3})


@pytest.fixture
def grouped_run(run: Record) -> Record:
    """Steps 1 and 10: a failed group, an even one, an uneven one, a solved one; hints at 1."""

    def store(step: int, hinted: bool) -> None:
        rewards = [(0, 0, 0, 0), (0, 1, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1)]
        run.rollouts(step, "train", [
            rollout(float(reward), group=g, question=f"step {step} group {g}?",
                    hint=f"Hint {i}." if hinted and g == 1 and i < 2 else "")
            for g, group in enumerate(rewards) for i, reward in enumerate(group)
        ])  # fmt: skip

    store(1, True)
    store(10, False)
    return run


def test_mixed_groups_come_first(grouped_run: Record) -> None:
    groups = some_groups(grouped_run)
    assert [(g.step, g.rollouts[0]["task"]["question"], g.mixed) for g in groups] == [
        (10, "step 10 group 1?", True),
        (10, "step 10 group 2?", True),
        (10, "step 10 group 0?", False),
        (1, "step 1 group 1?", True),
        (1, "step 1 group 2?", True),
        (1, "step 1 group 0?", False),
    ]
    assert groups[1].rewards == [0, 0, 0, 1]
    assert [row["reward"] for row in groups[0].rollouts] == [0, 0, 1, 1]


def test_of_a_large_group_both_ends_are_shown(run: Record) -> None:
    run.rollouts(1, "train", [rollout(i / 15) for i in range(16)])
    [group] = some_groups(run)
    assert (len(group.rewards), len(group.columns)) == (16, MOST_COLUMNS)
    assert [row["reward"] for row in group.columns][::7] == [0.0, 1.0]
    page = check(write_report(run.path))
    assert "16, 8 of them shown" in page.words


def test_the_page_shows_groups_by_author(grouped_run: Record) -> None:
    words = check(write_report(grouped_run.path)).words
    html = grouped_run.report_path.read_text(encoding="utf-8")
    assert html.count("<article>") == 6 * 4
    assert html.count("<details open>") == 1
    for text in ("0.50 below the mean", "0.25 below the mean", "0.75 above the mean",
                 "Sampled under the hint, trained on without it: Hint 0.", "all alike: no gradient", "turn 1 · search"):  # fmt: skip
        assert text in words, text
    assert '<div class="block own text">&lt;search&gt;é&lt;/search&gt;</div>' in html
    assert '<div class="block obs text">Found: é.</div>' in html


def test_long_rollouts_and_questions_are_cut_and_say_so(run: Record) -> None:
    long = tuple(Turn("x" * 2900, "y" * 900, "search") for _ in range(MOST_TURNS + 2))
    question = "why " * 1000 + "end"
    run.rollouts(1, "train", [rollout(0.0, long, question=question), rollout(1.0)])
    words = check(write_report(run.path)).words
    assert "900 more characters" in words
    assert "2_003 more characters" in words
    assert "why end" not in words
    assert "… 2 more turns" in words


def test_what_went_wrong_in_a_turn_is_said(run: Record) -> None:
    turns = (Turn("<search> </search>", "\nempty\n", "invalid", "empty query"), Turn("?", "", ""))
    trajectory = replace(rollout(0.0, turns), feedback="brief: Too long.")
    run.rollouts(1, "train", [trajectory, rollout(1.0)])
    run.rollouts(1, "evaluate_after", [trajectory])
    words = check(write_report(run.path)).words
    assert "turn 1 · invalid empty query" in words
    assert words.count("Feedback: brief: Too long.") == 1
    assert words.count("Feedback brief: Too long.") == 1
