"""The progress of a step, on a terminal and in a log."""

import io

from rich.console import Console

from cotune.utils.progress import begin, report, step_progress, write_under_step


def test_reports_are_written_under_their_step() -> None:
    lines: list[str] = []
    listen = write_under_step(lines.append)
    for stage, done, total in (
        ("loading the policy", 0, 0), ("train", 128, 512), ("tokens", 7, 64), ("step", 1, 3),
        ("tokens", 8, 64), ("update", 2, 8), ("step", 3, 3), ("evaluate", 0, 24),
    ):  # fmt: skip
        listen(stage, done, total)
    assert lines == [
        "loading the policy …",
        "rollouts 128/512",
        "rollouts 128/512; token 7 of at most 64",
        "step 2/3: update, micro-batches 2/8",
        "evaluation, rollouts 0/24",
    ]


def progress_text(**options: bool) -> str:
    out = io.StringIO()
    with step_progress(Console(file=out, width=200, **options)):
        begin("loading the policy")
        report("step", 4, 9)
        for done in (0, 12):
            report("train", done, 48)
    return out.getvalue()


def test_a_terminal_has_a_status_that_goes_away_and_a_log_a_line_a_stage() -> None:
    bar = progress_text(force_terminal=True)
    assert "step 5/9: rollouts 12/48" in bar
    assert bar.rstrip().endswith("\x1b[2K")
    assert progress_text(force_terminal=True, quiet=True) == ""
    assert progress_text() == "  loading the policy …\n  rollouts 0/48\n"
