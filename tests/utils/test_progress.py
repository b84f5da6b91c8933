"""The progress of a step, on a terminal and in a log."""

import io

from rich.console import Console

from cotune.utils.progress import begin, report, step_progress, write_at_intervals, write_under_step


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_names_each_beginning_and_later_comes_every_half_a_minute() -> (
    None
):
    clock, written = Clock(), list[str]()
    listen = write_under_step(write_at_intervals(written.append, clock))
    for seconds, what, done, total in (
        (1, "loading the policy", 0, 0), (5, "evaluate", 0, 24), (9, "evaluate", 24, 24),
        (10, "train", 0, 512), (40, "train", 128, 512), (50, "tokens", 7, 64), (60, "step", 1, 3),
        (65, "saving", 0, 0), (70, "train", 0, 512), (94, "tokens", 8, 64), (95, "tokens", 9, 64),
        (100, "tokens", 10, 64), (120, "step", 2, 3), (151, "tokens", 1, 64),
        (155, "update", 2, 8),
    ):  # fmt: skip
        clock.now = seconds
        listen(what, done, total)
    assert written == [
        "  loading the policy …",
        "  evaluation, rollouts 0/24",
        "  rollouts 0/512",
        "  rollouts 128/512",
        "  step 2/3: saving …",
        "  step 2/3: rollouts 0/512; token 9 of at most 64",
        "  step 3/3: update, micro-batches 2/8",
    ]


def shown(**options: bool) -> str:
    out = io.StringIO()
    with step_progress(Console(file=out, width=200, **options)):
        begin("loading the policy")
        report("step", 4, 9)
        report("train", 12, 48)
    return out.getvalue()


def test_a_terminal_has_a_status_that_goes_away_and_a_log_none() -> None:
    bar = shown(force_terminal=True)
    assert "step 5/9: rollouts 12/48" in bar
    assert bar.rstrip().endswith("\x1b[2K")
    assert shown(force_terminal=True, quiet=True) == ""
    assert shown() == "  loading the policy …\n"
