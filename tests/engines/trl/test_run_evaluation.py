"""What closes a run: its evaluations, the choice of I*, and both in the summary."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines import run_summary
from cotune.engines.evaluation import Outcome, RunEvaluation
from cotune.engines.trl.grpo import TRLBest
from cotune.engines.trl.trackers import report_scores
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context
from cotune.policy.policy_files import read_best
from cotune.protocols import State, Strategy
from tests.engines.trl.setup import HINT, Counting, Run, start
from tests.policy.tiny import tiny_tokenizer
from tests.run_files import tiny

TEXTS = ("abc de. ", "fade bed. ")
CLEAR = ([0.4, 0.5], [0.8, 0.9])  # means 0.45 and 0.85; standard error of the difference 0.07
CLOSE = ([0.4, 0.9], [0.5, 0.9])  # means 0.65 and 0.7; 0.32


def inspo_state(windows: tuple[list[float], ...]) -> State:
    """INSPO's state with an instruction a window; three rollouts were observed in each step."""
    fresh = Inspo(InspoOptions(population_size=1), Context(instruction=TEXTS[0])).state_dict()
    members: list[dict[str, Any]] = []
    for i, window in enumerate(windows):
        parent = (
            {"parent": "i0", "origin": "rewrite"} if i else {"parent": None, "origin": "initial"}
        )
        instruction = {"id": f"i{i}", "text": TEXTS[i], "born": 0, "critique": "", **parent}
        size = len(window)
        members.append(
            {
                "instruction": instruction,
                "start": 0.0,
                "window": window,
                "steps": size,
                "rollouts": 3 * size,
            }
        )
    return {
        **fresh,
        "phases_run": 2,
        "population": {"members": members},
        "lineage": [member["instruction"] for member in members],
    }


def finished(folder: Path, strategy: Strategy, **evaluation: Any) -> tuple[Run, Outcome, RunConfig]:
    """A run after its last step, closed."""
    run = start(folder, strategy)
    raw = tiny(folder / "run", {"strategy": {"kind": "static"}, "evaluation": evaluation})
    config = parse_config(raw, "test")
    run.joint.bind(run.trainer)
    run.ledger.begin_attempt(None)
    run.joint.batches = 2
    best = TRLBest(run.folder.best_path, tiny_tokenizer())
    return (
        run,
        RunEvaluation(
            config.evaluation, config.instruction, run.folder, best, report_scores
        ).finish(run.joint),
        config,
    )


@pytest.mark.parametrize(
    ("windows", "chosen", "runner_up", "weight", "close"),
    [
        (CLEAR, "i1", "i0", 0.85, False),
        (CLOSE, "i1", "i0", 0.7, True),
        (([0.4],), "i0", None, 0.4, False),  # it stands alone
    ],
    ids=["clear", "close", "alone"],
)
def test_the_best_instruction_is_told_with_how_sure_one_can_be(
    tmp_path: Path,
    windows: tuple[list[float], ...],
    chosen: str,
    runner_up: str | None,
    weight: float,
    close: bool,
) -> None:
    strategy = Inspo(InspoOptions(population_size=1), Context(instruction=TEXTS[0]))
    strategy.load_state_dict(inspo_state(windows))
    run, outcome, config = finished(tmp_path, strategy)
    (event,) = [row for row in run.folder.read_events() if row["kind"] == "best_instruction"]
    size = len(windows[0])
    assert event["step"] == 3
    assert event["weight"] == pytest.approx(weight)
    fields = ("id", "runner_up", "observed_steps", "observed_rollouts", "too_close_to_call")
    assert [event[f] for f in fields] == [chosen, runner_up, size, 3 * size, close]
    assert (outcome.instruction_id, outcome.steps) == (chosen, 2)
    run_summary.write_run_summary(config, run.folder, outcome, run.ledger)
    summary = run.folder.read_summary()
    assert summary is not None
    (arm,) = summary["arms"].values()
    assert (arm["too_close_to_call"], arm["best_instruction_observed_rollouts"]) == (
        close,
        3 * size,
    )
    assert arm["best_instruction"] == summary["best_instruction"] == TEXTS[int(chosen[1])]


def test_without_validation_a_run_that_went_further_is_reported_by_its_last_policy(
    tmp_path: Path,
) -> None:
    run, outcome, config = finished(tmp_path, Counting(), every=0)
    assert outcome.steps == 2
    assert outcome.ended_early == ""
    run.joint.batches, run.joint.total_batches, run.joint.ended = 4, 9, True
    run.folder.event("phase_failed", 3, reason="LLMError: 401", in_a_row=1)
    run.folder.event("proposals_ended", 4, reason="llm.budget is spent")
    best = TRLBest(run.folder.best_path, tiny_tokenizer())
    outcome = RunEvaluation(
        config.evaluation, config.instruction, run.folder, best, report_scores
    ).finish(run.joint)
    assert read_best(run.folder.best_path)["step"] == 4
    # That a budget ended it is told, and kept in the summary.
    ended = "training ended after step 4 of 9: training.rollout_budget is spent"
    told = [row["text"] for row in run.folder.read_events() if row["kind"] == "notice"]
    assert told == [outcome.ended_early] == [ended]
    run_summary.write_run_summary(config, run.folder, outcome, run.ledger)
    (arm,) = (run.folder.read_summary() or {})["arms"].values()
    assert [arm[name] for name in ("ended_early", "failed_phases", "proposals_ended")] == [
        ended,
        1,
        "llm.budget is spent",
    ]


def test_a_strategy_without_a_population_says_nothing_of_a_choice(tmp_path: Path) -> None:
    run, outcome, config = finished(tmp_path, Counting())
    assert outcome.choice is None
    assert "best_instruction" not in {row["kind"] for row in run.folder.read_events()}
    run_summary.write_run_summary(config, run.folder, outcome, run.ledger)
    (arm,) = (run.folder.read_summary() or {})["arms"].values()
    assert "too_close_to_call" not in arm


def test_closing_counts_under_the_step_after_the_last(tmp_path: Path) -> None:
    run, outcome, _ = finished(tmp_path, Counting(), every=5)
    rows = [row for row in run.folder.read_events() if row["kind"] == "evaluated"]
    # The instruction is not the initial one of the run file, so that one is measured, too.
    assert [(row["when"], row["split"], row["step"], row["trained"]) for row in rows] == [
        ("during", "validation", 3, 2),
        ("after", "test", 3, 2),
        ("plain", "test", 3, 2),
    ]
    assert {row.step for row in run.ledger.rows()} == {3}
    assert [row["prompt"] for row in rows] == ["best", "best", "initial"]
    assert outcome.after.em == rows[1]["em"]
    assert outcome.before is None


class Hinting(Counting):
    """Knows a hint to keep at inference."""

    def best_hint(self) -> str:
        return HINT


def test_a_best_hint_is_kept_and_scored_besides(tmp_path: Path) -> None:
    run, outcome, config = finished(tmp_path, Hinting())
    rows = [row for row in run.folder.read_events() if row["kind"] == "evaluated"]
    assert [(row["when"], row["prompt"], row["step"]) for row in rows] == [
        ("after", "best", 3),
        ("plain", "initial", 3),
        ("hinted", "best with hint", 3),
    ]
    assert (run.folder.best_path / "hint.txt").read_text() == HINT + "\n"
    seen = {
        when: {
            row["sampled"]["hint"] for row in run.folder.read_trajectories(3, f"evaluate_{when}")
        }
        for when in ("after", "plain", "hinted")
    }
    assert seen == {"after": {""}, "plain": {""}, "hinted": {HINT}}
    assert outcome.hinted is not None
    run_summary.write_run_summary(config, run.folder, outcome, run.ledger)
    (arm,) = (run.folder.read_summary() or {})["arms"].values()
    assert (arm["em_with_hint"], arm["em_with_hint_n"]) == (rows[2]["em"], rows[2]["n"])
