"""How a run is shown: events and steps on the console and in a log, and notices."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cotune.run.events import (
    EVENTS,
    RunDisplay,
    describe_event,
    equal_rewards_notice,
    truncation_metrics,
    truncation_notice,
)
from cotune.types import Assignment, Prompt, StopReason, Turn
from tests.helpers import make_tasks, make_trajectory


def render_markup(markup: str) -> str:
    out = io.StringIO()
    Console(file=out, width=10_000).print(markup, highlight=False)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["instruction_born", "hint_accepted"])
@given(text=st.text(max_size=60))
def test_what_a_model_wrote_is_shown_as_it_is(kind: str, text: str) -> None:
    line = describe_event(kind, {"id": "i1", "text": text, "mean_dev_score": 0.5})
    printable = " ".join(text.split())
    if printable.isprintable():
        assert f": {printable}" in render_markup(line)


def show_steps(*steps: dict[str, float]) -> list[str]:
    """What the console shows after the metrics of each of some steps, in all so far."""
    out = io.StringIO()
    listener = RunDisplay(Console(file=out, width=200), 9)
    texts: list[str] = []
    for step, values in enumerate(steps, 1):
        listener.metrics(int(values.pop("step", step)), values)
        texts.append(out.getvalue())
    return texts


def test_a_step_is_one_line() -> None:
    metrics = {"zero_advantage_share": 1.0, "distil/share": 1.0, "distil/loss": 0.25}
    # Mini-batches of a step are one.
    text = show_steps(*({"step": s, **metrics} for s in (1, 1, 2, 2, 3)))[-1]
    assert [text.count(f"step {step}/9") for step in (1, 2, 3)] == [1, 1, 1]
    assert text.count("zero-advantage groups 100%") == text.count("distillation loss 0.250") == 3


def test_the_time_left_goes_by_the_steps_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, *(second for time in (100.0, 160.0, 220.0, 400.0) for second in (time, time))))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    text = show_steps(*({"step": step, "reward_mean": 0.5} for step in (3, 4, 6, 9)))[-1]
    assert [line.rpartition("  ")[2] for line in text.splitlines()] == [
        "reward 0.50", "5 min 00 s left", "2 min 00 s left", "reward 0.50",
    ]  # fmt: skip


HOSTILE = "\x1b[2J\x1b]0;owned\x07a\x9b31mb\x7f\u202ec\ud83d\rd \x00e\tf\ng"


@pytest.mark.parametrize(
    ("kind", "field"),
    [("instruction_born", "text"), ("instruction_born", "origin"), ("proposal_failed", "reason")],
)
def test_console_lines_hold_no_control_characters(kind: str, field: str) -> None:
    line = describe_event(kind, {field: HOSTILE, "id": "i1"})
    assert "[2J]0;owneda31mbc d e f g" in render_markup(line)
    assert line.isprintable()


def test_what_was_written_is_text_and_cut_between_characters() -> None:
    # Not in markup.
    line = describe_event("instruction_born", {"id": "i1", "text": "[" * 200})
    assert render_markup(line).endswith(f": {'[' * 110}…\n")
    line = describe_event("notice", {"text": "[/red] {x} [link=x]"})
    assert "[/red] {x} [link=x]" in render_markup(line)
    # An event without some fields is shown all the same.
    for kind in EVENTS:
        render_markup(describe_event(kind, {}))
    assert describe_event("mine", {"text": "{x}"}) == ""


EVALUATED = {
    "em": 0.5,
    "n": 6,
    "split": "test",
    "instruction_id": "i2",
    "measure": "mean reward",
    "prompt": "best",
}
ENDED = {"evaluations": 400, "budget": 400, "asked": 16, "accepted": 7, "covering": 4, "solved_without": 0.0,
         "solved_by_cover": 0.875}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        ("instruction_born",
         {"id": "i3", "origin": "reflection", "text": "Do.", "score": 0.5, "parent_score": 0.25},
         "+ i3 (reflection, 0.50 against its parent's 0.25): Do."),
        ("evaluated", {**EVALUATED, "when": "after"}, "best instruction (i2): mean reward 0.50 on 6 test questions"),
        ("hint_phase_ended", ENDED,
         "hints: 7 of 16 proposals accepted, 4 cover; dev solved 0.00 -> 0.88; 400/400 evaluations"),
        ("population", {"members": []}, ""),
    ],
)  # fmt: skip
def test_events_in_words(kind: str, fields: dict[str, object], line: str) -> None:
    assert render_markup(describe_event(kind, fields)) == f"{line}\n"


def test_a_script_is_told_what_the_console_would_say(caplog: pytest.LogCaptureFixture) -> None:
    listener = RunDisplay()
    for step in range(1, 5):
        listener.metrics(step, {"zero_advantage_share": 1.0, "truncated_share": 0.0})
    (warning,) = [r for r in caplog.records if r.name == "cotune"]
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith("step 3: the rewards of every group were equal in 3")


@pytest.mark.parametrize(
    ("metrics", "notice"),
    [
        ({"failed_search_share": 0.5}, "a search failed in 50% of the rollouts"),
        ({"environment_error_share": 0.2}, "20% of the rollouts ended in an error of the environment"),
        ({"actions/price": 1.0, "actions_failed/price": 0.95}, "95% of the turns with price failed"),
        ({"actions/price": 1.0, "actions_failed/price": 0.5}, ""),
        ({"actions/price": 0.05, "actions_failed/price": 1.0}, ""),  # too few calls
    ],
)  # fmt: skip
def test_which_failures_are_an_outage(metrics: dict[str, float], notice: str) -> None:
    (text,) = show_steps(metrics)
    assert notice in text
    assert any(fix in text for fix in ("read the errors", "environment.retriever")) == bool(notice)


def test_truncation_is_in_the_step_line_and_pointed_out_once() -> None:
    shares = (0.0, 0.5, 0.75, 0.8)
    texts = show_steps(*({"truncated_share": s, "truncated/turns": s} for s in shares))
    assert all(f"truncated {s:.0%}" in text for s, text in zip(shares, texts, strict=True))
    assert [text.count("raise limits.turns") for text in texts] == [0, 0, 1, 1]


STOPS = (
    [StopReason.TURN_TOKENS] * 3
    + [StopReason.CONTEXT_LIMIT]
    + [StopReason.ANSWERED, StopReason.ENVIRONMENT_ERROR]
)
ASSIGNMENT = Assignment(make_tasks(1)[0], Prompt("i"), Prompt("i"), "i0", 0)
ROLLOUTS = [make_trajectory(ASSIGNMENT, 0.0, "text", stop) for stop in STOPS]


def test_truncated_rollouts_are_counted_by_limit() -> None:
    metrics = truncation_metrics(ROLLOUTS)
    assert metrics == {
        "truncated_share": pytest.approx(4 / 6),
        "truncated/turn_tokens": pytest.approx(3 / 6),
        "truncated/context": pytest.approx(1 / 6),
    }
    assert truncation_notice(metrics) == (
        "67% of the rollouts were truncated, most of them by limits.turn_tokens; "
        "raise limits.turn_tokens"
    )
    assert truncation_notice(truncation_metrics(ROLLOUTS[2:])) == ""
    # The only turn of a rollout is no limit.
    once = make_trajectory(ASSIGNMENT, 0.0, "text", StopReason.TURN_LIMIT)
    twice = replace(once, turns=(Turn("a"), Turn("b")))
    assert (once.truncated_by, twice.truncated_by) == ("", "turns")


@pytest.mark.parametrize(
    ("answers", "rewards", "expected"),
    [
        (["7 apples", "7 apples", None], [0, 0, 0], (
            'all 3 rollouts of the first step have the reward 0, 1 of them without an answer; such as "7 apples" '
            '(expected "Paris"), no answer in "…text"; if any should score otherwise, check the reward functions'
        )),
        (["a", "b", "c", "d"], [-1, -1, -1, -1], 'reward -1, 0 of them without an answer; such as "a" (expected'),
        (["a\nb\x1b[31m" + "c" * 200], [0.5], f'such as "a b[31m{"c" * 73}" (expected "Paris"); if'),
        (["a", "b"], [0, 0.1], ""),
        ([], [], ""),
    ],
)  # fmt: skip
def test_a_first_batch_without_a_difference_says_what_the_answers_look_like(
    answers: list[str | None], rewards: list[float], expected: str
) -> None:
    task = replace(ASSIGNMENT.task, answers=("Paris",))
    rollouts = [
        replace(make_trajectory(replace(ASSIGNMENT, task=task), reward, "text"), answer=answer)
        for answer, reward in zip(answers, rewards, strict=True)
    ]
    notice = equal_rewards_notice(rollouts)
    assert expected in notice
    assert bool(expected) == bool(notice)
    assert '"d"' not in notice
    # Broken rollouts say nothing of the answers.
    broken = replace(ROLLOUTS[-1], reward=1.0)
    assert equal_rewards_notice([*rollouts, broken]) == notice
