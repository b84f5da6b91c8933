"""What closes a run: its evaluations, the choice of I*, and both in the summary."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import EvaluationConfig, parse_config
from cotune.engines.evaluation import Outcome, RunEvaluation, write_run_summary
from cotune.engines.joint import settings_of
from cotune.engines.trl.joint_trainer import TRLBest
from cotune.engines.trl.trl_joint import report_scores
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.method import Context
from cotune.protocols import State, Strategy
from cotune.run.best import read_best
from cotune.run.scores import Score, wilson
from cotune.types import Prompt
from tests.engines.trl.setup import HINT, Counting, Run, start
from tests.policy.tiny import Letters, tiny_tokenizer
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
                "observed": sum(window) / size if window else None,
            }
        )
    return {
        **fresh,
        "begun": 2,
        "population": {"members": members},
        "lineage": [member["instruction"] for member in members],
    }


def inspo(windows: tuple[list[float], ...] = ()) -> Inspo:
    """INSPO with an instruction a window."""
    strategy = Inspo(InspoOptions(population_size=1), Context(instruction=TEXTS[0]))
    if windows:
        strategy.load_state_dict(inspo_state(windows))
    return strategy


def trained(folder: Path, strategy: Strategy, every: int = 0) -> tuple[Run, RunEvaluation]:
    """A run after its second and last step, and what evaluates it."""
    run = start(folder, strategy)
    run.folder.begin_attempt(None)
    run.joint.batches = 2
    return run, evaluation_of(run, every)


def evaluation_of(run: Run, every: int = 0) -> RunEvaluation:
    best = TRLBest(run.folder.best_path, tiny_tokenizer())
    initial = Prompt(Letters.initial_instruction)
    options = EvaluationConfig(every=every)
    return RunEvaluation(options, initial, run.folder, best, report_scores)


def finished(folder: Path, strategy: Strategy, every: int = 0) -> tuple[Run, Outcome]:
    """A run that is closed."""
    run, evaluations = trained(folder, strategy, every)
    return run, evaluations.finish(run.joint)


def summary_of(run: Run, outcome: Outcome) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the summary; return it and its arm."""
    raw = tiny(run.folder.path, {"strategy": {"kind": "static"}})
    settings = settings_of(parse_config(raw, "test"), None)
    write_run_summary(settings, run.folder, outcome)
    summary = run.folder.read_summary()
    assert summary is not None
    (arm,) = summary["arms"].values()
    return summary, arm


@pytest.mark.parametrize(
    ("windows", "best_id", "runner_up", "weight", "close"),
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
    best_id: str,
    runner_up: str | None,
    weight: float,
    close: bool,
) -> None:
    run, outcome = finished(tmp_path, inspo(windows))
    (event,) = [row for row in run.folder.read_events() if row["kind"] == "best_instruction"]
    size = len(windows[0])
    assert event["step"] == 3
    assert event["weight"] == pytest.approx(weight)
    fields = ("id", "runner_up", "observed_steps", "observed_rollouts", "too_close_to_call")
    assert [event[f] for f in fields] == [best_id, runner_up, size, 3 * size, close]
    assert (outcome.kept.instruction_id, outcome.steps) == (best_id, 2)
    summary, arm = summary_of(run, outcome)
    assert arm["best_instruction"] == summary["best_instruction"] == TEXTS[int(best_id[1])]


def test_one_statement_says_which_pair_is_kept_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The population's leader at the end is another instruction than the one that is kept."""
    strategy = inspo(([0.5, 0.75], [0.25, 0.25]))
    run, evaluation = trained(tmp_path, strategy, every=1)
    best = Score(0.75, 8, {}, interval=wilson(0.75, 8))
    validation = iter((best, Score(0.5, 8, {}), Score(0.25, 8, {})))

    measured: list[tuple[str, str]] = []

    def measure(self: RunEvaluation, joint: Any, split: str, when: str, *_: Any) -> Score:
        measured.append((split, when))
        return next(validation) if split == "validation" else Score(0.25, 8, {})

    monkeypatch.setattr(RunEvaluation, "_measure", measure)
    run.joint.batches = 1
    evaluation(run.joint, 1)
    strategy.load_state_dict(inspo_state(([0.5, 0.75], [0.75, 0.75])))
    run.joint.batches = 2
    outcome = evaluation.finish(run.joint)
    statement = outcome.kept.statement()
    assert statement.startswith(
        "Kept: the policy of step 1 of 2 with instruction i0 (observed in 2 steps"
    )
    assert (outcome.kept.instruction_id, outcome.kept.instruction) == ("i0", TEXTS[0])
    assert read_best(run.folder.best_path) == outcome.kept
    _, arm = summary_of(run, outcome)
    assert (arm["kept"], arm["best_instruction"]) == (statement, TEXTS[0])
    assert arm["best_step"] == 1


@pytest.mark.parametrize(
    ("checks", "plain", "ships"),
    [(False, 1.0, True), (True, 0.5, True), (True, 0.75, False)],
    ids=["unchecked", "uplift", "no uplift"],
)
def test_a_method_may_have_its_instruction_checked_against_the_initial_one(
    checks: bool, plain: float, ships: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inspo, "checks_uplift", checks, raising=False)
    run, evaluation = trained(tmp_path, inspo(CLEAR), every=1)
    initial, evolved = TEXTS  # i0 is the environment's own
    shipped = evolved if ships else initial
    measured: list[tuple[str, str, str]] = []

    def measure(_: Any, __: Any, split: str, when: str, prompt: Any = None, *___: Any) -> Score:
        measured.append((split, when, "" if prompt is None else prompt.instruction))
        return Score({"during": 0.75, "uplift": plain}.get(when, 0.25), 8, {})

    monkeypatch.setattr(RunEvaluation, "_measure", measure)
    assert evaluation.finish(run.joint).kept.instruction == shipped
    measured.clear()
    outcome = evaluation_of(run, every=1).finish(run.joint)  # as a resume after the last step does
    assert outcome.kept.instruction == shipped
    assert outcome.kept == read_best(run.folder.best_path)
    uplift = [("validation", "uplift", initial)] if checks else []
    assert measured[: 2 + len(uplift)] == [
        ("validation", "during", ""), *uplift, ("test", "after", shipped)
    ]  # fmt: skip
    event = [row for row in run.folder.read_events() if row["kind"] == "best_kept"][-1]
    scores = (event["em"], event["initial_em"])
    assert scores == (0.75, plain if checks else None)
    assert event["id"] == outcome.kept.instruction_id == ("i1" if ships else "i0")
    text = run.folder.best_path / "instruction.txt"
    assert text.read_text() == shipped + "\n"
    if checks:
        phrase = "initial instruction scores 0.500" if ships else "instruction i1 scores 0.750"
        assert phrase in event["text"]


@pytest.mark.parametrize(
    ("windows", "scores", "best"),
    [
        (([0.5, 0.7], [0.5, 0.75]), {"i0": 0.75, "i1": 0.5}, "i0"),
        (([0.5, 0.7], [0.5, 0.75]), {"i0": 0.5, "i1": 0.5}, "i1"),
        (CLEAR, {"i1": 0.5}, "i1"),
    ],
    ids=["too close", "tie", "clear"],
)
def test_validation_decides_between_instructions_that_are_too_close(
    windows: Any, scores: dict[str, float], best: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    strategy = inspo(windows)
    run, evaluation = trained(tmp_path, strategy, every=1)
    scored: dict[str, float] = {}

    def measure(_: Any, __: Any, split: str, ___: str, *prompt_and_id: Any) -> Score:
        if split == "test":
            return Score(0.25, 8, {})
        identity = prompt_and_id[1] if prompt_and_id else strategy.best_instruction_id()
        assert identity not in scored
        scored[identity] = scores[identity]
        return Score(scored[identity], 8, {})

    monkeypatch.setattr(RunEvaluation, "_measure", measure)
    outcome = evaluation.finish(run.joint)
    assert scored == scores
    assert (outcome.kept.instruction_id, outcome.kept.instruction) == (best, TEXTS[int(best[1])])
    assert outcome.kept.em == scores[best]


def test_a_score_that_is_read_back_has_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = itertools.cycle([-3.0, 0.1, 7.25])
    monkeypatch.setattr(Letters, "score", lambda self, trajectory: (next(rewards), None))
    run, evaluation = trained(tmp_path, inspo(CLEAR), every=1)
    score = evaluation.validate(run.joint, 2)
    assert score.interval is not None
    assert evaluation.during(run.joint, last=True)[0] == score
    rows = [row for row in run.folder.read_events() if row["kind"] == "evaluated"]
    assert len(rows) == 1


@pytest.mark.parametrize("last_stage", [False, True])
def test_the_last_policy_is_kept_if_the_method_ends_by_a_stage_of_its_own(
    last_stage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, evaluation = trained(tmp_path, Counting(), every=1)
    monkeypatch.setattr(Counting, "has_teacher", last_stage)
    scores = iter([0.9, *[0.5] * 5])  # the first policy is better on validation than the last
    tested: list[int] = []

    def measure(self: RunEvaluation, joint: Any, split: str, when: str, *more: Any) -> Score:
        tested.extend(more[2:])  # the steps that the policy on test was trained for
        return Score(next(scores), 8, {})

    monkeypatch.setattr(RunEvaluation, "_measure", measure)
    run.joint.batches = 1
    evaluation(run.joint, 1)
    run.joint.batches = 2
    evaluation.finish(run.joint)
    record = read_best(run.folder.best_path)
    assert record is not None
    assert (record.step, record.em) == ((2, 0.5) if last_stage else (1, 0.9))
    assert set(tested) == {record.step}
    # Extended to more steps, the run ends with a lower score.
    scores = iter([0.4] * 5)
    run.joint.batches = 3
    evaluation.finish(run.joint)
    record = read_best(run.folder.best_path)
    assert record is not None
    assert (record.step, record.em) == ((3, 0.4) if last_stage else (1, 0.9))


def test_without_validation_a_run_that_went_further_is_reported_by_its_last_policy(
    tmp_path: Path,
) -> None:
    run, evaluation = trained(tmp_path, Counting(), every=0)
    outcome = evaluation.finish(run.joint)
    assert outcome.steps == 2
    assert outcome.ended_early == ""
    run.joint.batches, run.joint.total_batches, run.joint.ended = 4, 9, True
    run.folder.event("phase_failed", 3, reason="LLMError: 401", in_a_row=1)
    run.folder.event("proposals_ended", 4, reason="llm.budget is spent")
    outcome = evaluation.finish(run.joint)
    record = read_best(run.folder.best_path)
    assert record is not None
    assert (record.step, record.trained) == (4, 4)
    # That a budget ended it is told, and kept in the summary.
    ended = "training ended after step 4 of 9: training.rollout_budget is spent"
    notices = [row["text"] for row in run.folder.read_events() if row["kind"] == "notice"]
    assert notices == [outcome.ended_early] == [ended]
    _, arm = summary_of(run, outcome)
    assert [arm[name] for name in ("ended_early", "failed_phases", "proposals_ended")] == [
        ended,
        1,
        "llm.budget is spent",
    ]


class Hinting(Counting):
    """Knows a hint to keep at inference."""

    def best_hint(self) -> str:
        return HINT


def test_closing_counts_under_the_step_after_the_last_and_scores_a_hint_besides(
    tmp_path: Path,
) -> None:
    run, outcome = finished(tmp_path, Hinting(), every=5)
    rows = [row for row in run.folder.read_events() if row["kind"] == "evaluated"]
    # The instruction is not the initial one of the run file, so that one is measured, too.
    assert [(row["when"], row["split"], row["prompt"]) for row in rows] == [
        ("during", "validation", "best"),
        ("after", "test", "best"),
        ("plain", "test", "initial"),
        ("hinted", "test", "best with hint"),
    ]
    assert {(row["step"], row["trained"]) for row in rows} == {(3, 2)}
    assert {row.step for row in run.folder.read_costs()} == {3}
    assert outcome.after.em == rows[1]["em"]
    assert outcome.before is None
    assert (run.folder.best_path / "hint.txt").read_text() == HINT + "\n"
    for when, hint in (("after", ""), ("plain", ""), ("hinted", HINT)):
        rollouts = run.folder.read_trajectories(3, f"evaluate_{when}")
        assert {row["sampled"]["hint"] for row in rollouts} == {hint}
    assert outcome.hinted is not None
    _, arm = summary_of(run, outcome)
    assert (arm["em_with_hint"], arm["em_with_hint_n"]) == (rows[3]["em"], rows[3]["n"])
