"""Projections worked by hand."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cotune.cli.plan import project, show_projection
from cotune.config.cost import Plan
from cotune.config.run_file import parse_config
from cotune.engines.engine import Measured
from cotune.run.costs import PURPOSES, Totals
from tests.run_files import tiny


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


def test_what_was_measured_goes_at_its_own_rate() -> None:
    measured = Measured(STEADY, totals({"train": 16, "verify": 4}, {"verify": 3.0}))
    assert project(measured, PLANNED, 8)["verify"] == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("planned", "calls", "expected"), [(6, 2, {"LLM": 6 * 1.5}), (6, 0, {}), (0, 0, {})]
)
def test_llm_calls(planned: int, calls: int, expected: dict[str, float]) -> None:
    measured = Measured(STEADY, totals({"train": 16}, calls=calls, llm_seconds=1.5 * calls))
    plan = Plan(PLANNED.rollouts, calls=planned, price=None)
    seconds = project(measured, plan, 8)
    assert {part: taken for part, taken in seconds.items() if part == "LLM"} == expected


def printed(measured: Measured, plan: Plan) -> str:
    out = io.StringIO()
    config = parse_config(tiny(Path("out")), "test")
    show_projection(config, measured, plan, Console(file=out, width=400))
    return out.getvalue()


def test_what_was_measured_is_printed() -> None:
    text = printed(Measured(STEADY, totals({"train": 16}, {"train": 4.0}), 2**30), PLANNED)
    assert "40 generated tokens a second of training rollouts; peak GPU memory 1.0 GiB" in text
    static = Plan({"train": 80, "evaluate": 30}, calls=0, price=None)
    assert "GPU" not in printed(Measured(STEADY[:1], totals({"train": 8})), static)
