"""`cotune plan --steps`: projections worked by hand, and real steps that leave nothing behind."""

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli import plan as measured_plan
from cotune.cli.plan import project, show_projection
from cotune.config.cost import Plan
from cotune.engines.engine import Measured
from cotune.errors import ConfigError, Stopped
from cotune.run.costs import PURPOSES, Totals
from cotune.run.run_dir import RunDir
from tests.policy.tiny import small_policy
from tests.run_files import config_of, tiny, write


def totals(
    rollouts: dict[str, int],
    seconds: dict[str, float] | None = None,
    calls: int = 0,
    llm_seconds: float = 0.0,
) -> Totals:
    """Ten tokens a training rollout, twenty one of all others."""
    per_rollout = {"train": 10}
    return Totals(
        rollouts={p: rollouts.get(p, 0) for p in PURPOSES},
        generated_tokens={p: rollouts.get(p, 0) * per_rollout.get(p, 20) for p in PURPOSES},
        seconds={p: (seconds or {}).get(p, 0.0) for p in PURPOSES},
        llm_calls=calls, llm_failed=0,
        llm_seconds=llm_seconds, money=0.0,
    )  # fmt: skip


WARM_UP = (50.0, 300.0)
STEADY = ((5.0, 8.0), (0.0, 12.0))
PLANNED = Plan(rollouts={"train": 80, "verify": 12, "evaluate": 30}, calls=6, price=None)


def test_the_first_of_several_steps_is_left_out() -> None:
    measured = Measured((WARM_UP, *STEADY), totals({"train": 24}, {"train": 9.0}))
    # 8 rollouts a step: ten steps of (8 + 12) / 2, without what evolution took.
    seconds = project(measured, PLANNED, 8)
    assert seconds["train"] == pytest.approx(100.0)
    # Neither verification nor evaluation was measured: 9 s for 24 rollouts.
    assert seconds["verify"] == pytest.approx(12 * 9 / 24)
    assert seconds["evaluate"] == pytest.approx(30 * 9 / 24)
    assert project(Measured(STEADY[1:], totals({"train": 8})), PLANNED, 8)["train"] == 120.0
    # What was measured goes at its own rate.
    verified = Measured(STEADY, totals({"train": 16, "verify": 4}, {"verify": 3.0}))
    assert project(verified, PLANNED, 8)["verify"] == pytest.approx(9.0)
    for planned_calls, calls, expected in ((6, 2, 6 * 1.5), (6, 0, None), (0, 0, None)):
        with_calls = Measured(STEADY, totals({"train": 16}, calls=calls, llm_seconds=1.5 * calls))
        plan = Plan(PLANNED.rollouts, calls=planned_calls, price=None)
        assert project(with_calls, plan, 8).get("LLM") == expected


def projection_text(measured: Measured, plan: Plan) -> str:
    out = io.StringIO()
    show_projection(config_of(), measured, plan, Console(file=out, width=400))
    return out.getvalue()


def test_what_was_measured_is_printed() -> None:
    text = projection_text(Measured(STEADY, totals({"train": 16}, {"train": 4.0}), 2**30), PLANNED)
    assert "40 generated tokens a second of training rollouts; peak GPU memory 1.0 GiB" in text
    static = Plan({"train": 80, "evaluate": 30}, calls=0, price=None)
    assert "GPU" not in projection_text(Measured(STEADY[:1], totals({"train": 8})), static)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    small_policy()  # is made once, and stays for the other tests
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def leftovers(temporary: Path) -> list[Path]:
    """What stays of ours: torch and wandb, where it is installed, have folders of their own there."""
    return list(temporary.glob("cotune*"))


def plan_text(tmp_path: Path, steps: int, *assignments: str, **changes: Any) -> str:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out", changes))
    out = io.StringIO()
    measured_plan.plan_by_steps(file, Console(file=out, width=200), steps, assignments)
    return out.getvalue()


@pytest.mark.slow
def test_steps_are_real_and_nothing_stays(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_data: dict[str, Any] = {}
    measure = measured_plan.measure

    def look_before_it_is_gone(config: Any, folder: Path, *args: Any) -> Measured:
        measured = measure(config, folder, *args)
        assert leftovers(temporary) == [folder.parent]
        run = RunDir.open(folder)
        run_data["events"] = [event["kind"] for event in run.read_events()]
        run_data["learning_rates"] = [row["learning_rate"] for row in run.read_metrics()]
        run_data["checkpoints"] = list(run.checkpoints_path.glob("checkpoint-*"))
        run_data["rollouts"] = run.totals().rollouts
        run_data["measured"] = measured
        return measured

    monkeypatch.setattr(measured_plan, "measure", look_before_it_is_gone)
    policy = {"path": small_policy()}
    changes = {"policy": policy, "training": {"steps": 40, "schedule": "linear", "mini_batches": 2}}
    text = plan_text(tmp_path, 3, "training.save_every=1", "evaluation.every=1", **changes)

    assert run_data["rollouts"]["train"] == 3 * 4 * 2
    assert 0 < run_data["rollouts"]["verify"] <= 14  # evolution falls due after step 2
    assert run_data["rollouts"]["evaluate"] == 0
    assert "instruction_born" in run_data["events"]
    assert not {"evaluated", "saved", "run_finished"} & set(run_data["events"])
    assert run_data["checkpoints"] == []
    # The schedule is that of the whole run of 80 optimizer steps, of which six are made.
    rates = run_data["learning_rates"]
    assert len(rates) == 6
    assert rates[-1] > 0.9 * rates[0]
    assert len(run_data["measured"].steps) == 3
    assert run_data["measured"].steps[2][0] > run_data["measured"].steps[1][0]

    assert "2 LLM calls (0 failed)" in text
    assert "The whole run, 40 steps, at this rate" in text
    assert "step 3/3" in text
    assert leftovers(temporary) == []
    assert not (tmp_path / "out").exists()


def test_what_is_wrong_is_said_and_nothing_stays(tmp_path: Path, temporary: Path) -> None:
    with pytest.raises(ConfigError, match=r"limits\.prompt_tokens is 20"):
        plan_text(tmp_path, 1, "limits.prompt_tokens=20")
    assert leftovers(temporary) == []


def test_a_stop_leaves_nothing(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(config: Any, folder: Path, *args: Any) -> Measured:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(measured_plan, "measure", stop)
    with pytest.raises(Stopped, match="nothing was kept"):
        plan_text(tmp_path, 1)
    assert leftovers(temporary) == []
