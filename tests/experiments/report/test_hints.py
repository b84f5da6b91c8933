"""P²O's part of a report, from a run with a real phase of hint evolution."""

from pathlib import Path
from typing import Any

from cotune.errors import LLMError
from cotune.experiments.report.run_report import hint_phases, write_report
from cotune.run.record import Record
from tests.experiments.report.pages import check
from tests.methods.p2o.hint_fakes import Policy, evolve, fresh_hint
from tests.scripted import Author


def mixed_replies(n: int, prompt: str) -> str:
    """Return valid hints, an answer of the questions, an error of the endpoint, in turn."""
    if n % 4 == 2:
        return "```\nThe answer is <b>secret3</b>.\n```"
    if n % 4 == 3:
        raise LLMError("the endpoint said <i>no</i>")
    return fresh_hint(n, ("columns", "conversion")[n % 2])


def test_the_page_tells_what_the_hints_went_through(tmp_path: Path) -> None:
    """A phase with failures, then too few hard questions."""
    run = Record.create(tmp_path / "p2o", {"name": "arithmetic", "strategy": {"kind": "p2o"}})
    evolve(Policy(), Author(mixed_replies), lambda kind, /, **fields: run.event(kind, 5, **fields))
    run.metrics(5, {"reward_mean": 0.5, "p2o/hard": 20})
    run.event("notice", 9, text="3 hard questions, hard_set_min_count is 4: no hints are evolved")

    [phase] = hint_phases(run.read_events())
    [end] = phase["hint_phase_ended"]
    assert phase["hint_accepted"] == [
        event for event in run.read_events() if event["kind"] == "hint_accepted"
    ]
    assert len(phase["proposal_failed"]) == end["asked"] - end["proposed"]
    assert len(phase["hint_rejected"]) == end["proposed"] - end["valid"] > 0
    words = check(write_report(run.path)).words
    for text in (
        "Hard questions",
        "Phase 1, before step 5",
        f"Hints ({len(phase['hint_accepted'])})",
        f"Rejected proposals ({len(phase['hint_rejected'])})",
        "× LLMError: the endpoint said <i>no</i>",
        "3 hard questions, hard_set_min_count is 4: no hints are evolved",
        "0.0_% without a hint, 100.0_% by some hint of the cover",
        *(event["text"] for event in phase["hint_accepted"]),
    ):
        assert text in words, text
    assert words.count("× LLMError") == 1
    assert "Instructions" not in words
    assert words.count("in cover") == len(end["covering_texts"]) > 0


def test_a_phase_that_was_cut_off_has_no_end() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "hint_phase", "step": 5, "phase": 1},
        {"kind": "hint_accepted", "step": 5, "text": "Do.", "parent": "", "mean_dev_score": 0.5},
    ]
    [phase] = hint_phases(events)
    assert phase["hint_phase_ended"] == []
    assert phase["hint_accepted"] == events[1:]
