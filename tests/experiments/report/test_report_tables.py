"""The tables of a report, its first screen, and the curves of behaviour."""

from pathlib import Path

import pytest

from cotune.experiments.report import count, duration, money, percent, points, write_report
from cotune.experiments.report.behaviour import behaviour_charts
from cotune.experiments.report.reading import read_arm, read_source
from cotune.experiments.report.tables import costs, results
from cotune.run.run_dir import RunDir
from tests.experiments.report.pages import check
from tests.experiments.report.test_report import CONFIG, build_comparison, result, train


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    return build_comparison(tmp_path / "demo")


def test_what_a_resume_changed_is_told(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run", CONFIG)
    train(run, 4, evolve=False)
    run.event("resumed", 4, from_step=4, changed={
        "training.steps": [6, 12], "llm.model": None, "logging.report_to": [[], ["<i>wandb"]],
    })  # fmt: skip
    words = check(write_report(run)).words
    assert "with another run file: training.steps 6 → 12" in words
    assert "llm.model another value, which is not recorded" in words
    assert 'logging.report_to [] → ["<i>wandb"]' in words


def test_the_first_screen_says_what_was_run_and_what_it_cost(comparison: Path) -> None:
    run = RunDir.open(comparison / "inspo")
    run.write_summary({"llm": "offline rules", "arms": {"inspo": result(True)}})
    html = write_report(run).read_text(encoding="utf-8")
    words = check(run.report_path).words
    assert html.index('id="result"') < html.index('id="cost"') < html.index("Best instruction")
    assert html.index("Best instruction") < html.index('id="training"')
    assert "Method inspo Model geo-1m LLM offline rules Seed 3 Steps 60" in words
    assert "Policy rollouts 13_200 train 12_000 verify 1_200" in words
    assert "Rollouts of evaluations, not counted above 1_800" in words
    # Overall and in each stratum, an interval.
    assert words.count("95_% CI") == 4
    assert "Result Cost Training Instructions Trajectories" in words


def test_behaviour_is_drawn_from_what_a_run_recorded(tmp_path: Path) -> None:
    old = RunDir.create(tmp_path / "old", CONFIG)
    new = RunDir.create(tmp_path / "new", CONFIG)
    for step in (1, 2, 3):
        old.metrics(step, {"reward": 0.5, "turns_mean": 2.5, "completions/mean_length": 40.0})
        new.metrics(step, {
            "reward": 0.5, "turns_mean": 2.5, "completion_tokens_mean": 90.0,
            "response_tokens_mean": 40.0, "prompt_tokens_mean": 120.0, "actions/answer": 1.0,
            **({"actions/search": 1.5} if step > 1 else {"actions/invalid": 0.25}),
        })  # fmt: skip
    arms = [read_arm(name, run, None) for name, run in (("old", old), ("new", new))]
    assert [c.title for c in behaviour_charts(arms[:1])] == [
        "Turns per rollout", "Response length in tokens",
    ]  # fmt: skip
    calls, response, prompt = behaviour_charts(arms[1:])
    assert calls.title == "Turns per rollout, by action"
    assert [name for _, name in calls.legend] == ["search", "unusable turns"]
    assert calls.svg.count('class="dot"') == 6  # 0 where no turn was of the kind
    assert [name for _, name in response.legend] == ["written by the policy", "with observations"]
    assert prompt.title == "Prompt length in tokens"
    both = behaviour_charts(arms)
    assert [c.title for c in both][:2] == [
        "Turns per rollout, by action",
        "Response length, own tokens",
    ]
    assert [name for _, name in both[0].legend] == ["new"]
    assert [name for _, name in both[1].legend] == ["old", "new"]


def test_results_and_costs_hold_the_numbers(comparison: Path) -> None:
    arms = read_source(comparison).arms
    table = results(arms)
    assert table["sizes"] == {"": 300, "1 hop": 100, "2 hops": 100, "3 hops": 100}
    arm, cells = table["rows"][1]
    assert arm.name == "inspo"
    assert (cells["3 hops"].before, cells["3 hops"].after) == (0.02, 0.45)
    assert cells["3 hops"].change == pytest.approx(0.43)
    rows = {what: values for _, what, values in costs(arms)}
    assert rows["Policy rollouts"] == ["12\u202f000", "13\u202f200"]
    evaluations = rows["Rollouts of evaluations, not counted above"]
    assert evaluations == ["1\u202f800", "1\u202f800"]
    assert rows["verify"] == ["0", "1\u202f200"]
    assert rows["Verification, share of all rollouts"] == ["0.0\u202f%", "9.1\u202f%"]
    assert rows["Money"] == ["$0.00", "$0.0312"]
    assert rows["Time"] == ["5 min 22 s", "5 min 22 s"]


def test_an_arm_without_its_folder_still_has_its_numbers() -> None:
    arm = read_arm("gone", None, {"em": 0.5})
    assert (arm.result, arm.finished, arm.best, arm.steps) == ({"em": 0.5}, True, None, 0)


def test_formats() -> None:
    assert (percent(0.1234), percent(None)) == ("12.3\u202f%", "–")
    assert (points(0.105), points(-0.02)) == ("+10.5", "−2.0")
    assert (count(1234567.0), count(12)) == ("1\u202f234\u202f567", "12")
    assert (money(0), money(0.0123), money(12.5)) == ("$0.00", "$0.0123", "$12.50")
    assert [duration(s) for s in (4.2, 42, 192, 18420)] == [
        "4.2 s", "42 s", "3 min 12 s", "5 h 07 min",
    ]  # fmt: skip


def test_rewards_and_captions_of_a_run_that_was_not_evaluated_before(tmp_path: Path) -> None:
    """As veRL's engine writes them: reward_mean, and no `reward` of TRL's."""
    run = RunDir.create(tmp_path / "run", CONFIG)
    told = {"split": "test", "prompt": "best", "instruction_id": "i0", "by_stratum": {}}
    for step in (1, 2, 3):
        run.metrics(step, {"reward_mean": step / 4})
    run.event("evaluated", 3, em=0.5, n=8, when="after", measure="exact match", **told)
    words = check(write_report(run)).words
    assert "Training reward per step" in words
    assert "Large: after training, which is not over. Below: the 95_% interval" in words
    run.event("evaluated", 1, em=0.25, n=8, when="before", measure="exact match", **told)
    assert "Below: before it, the change in percentage points, and the 95_% interval" in (
        check(write_report(run)).words
    )
