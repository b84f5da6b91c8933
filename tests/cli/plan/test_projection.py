"""Projections worked by hand."""

import pytest

from cotune.cli.plan.measured_plan import caveats, project, rates
from cotune.config.cost import Plan
from cotune.engines.engine import Measured, MeasuredStep
from cotune.run.costs import PURPOSES, Totals


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
        llm_calls=calls, llm_failed=0, llm_prompt_tokens=0,
        llm_completion_tokens=0, llm_seconds=llm_seconds, money=0.0,
    )  # fmt: skip


WARM_UP = MeasuredStep(evolution=50.0, rollouts=100.0, update=200.0)
STEADY = (MeasuredStep(5.0, 2.0, 6.0), MeasuredStep(0.0, 4.0, 8.0))
PLANNED = Plan(rollouts={"train": 80, "verify": 12, "evaluate": 30}, calls=6, price=None)


def test_the_first_of_several_steps_is_left_out() -> None:
    measured = Measured((WARM_UP, *STEADY), totals({"train": 24}))
    # 8 rollouts a step: ten steps of (2 + 6 + 4 + 8) / 2, without what evolution took.
    seconds = project(measured, PLANNED, 8)
    assert seconds["train"] == pytest.approx(100.0)
    # 3 s of rollouts a step of 8: neither verification nor evaluation was measured.
    assert seconds["verify"] == pytest.approx(12 * 3 / 8)
    assert seconds["evaluate"] == pytest.approx(30 * 3 / 8)


def test_one_step_alone_counts() -> None:
    measured = Measured((STEADY[1],), totals({"train": 8}))
    assert project(measured, PLANNED, 8)["train"] == pytest.approx(120.0)


def test_what_was_measured_goes_at_its_own_rate() -> None:
    measured = Measured(STEADY, totals({"train": 16, "verify": 4}, {"verify": 3.0}))
    assert project(measured, PLANNED, 8)["verify"] == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("planned", "calls", "expected"), [(6, 2, {"LLM": 6 * 1.5}), (6, 0, {"LLM": None}), (0, 0, {})]
)
def test_llm_calls(planned: int, calls: int, expected: dict[str, float | None]) -> None:
    measured = Measured(STEADY, totals({"train": 16}, calls=calls, llm_seconds=1.5 * calls))
    plan = Plan(PLANNED.rollouts, calls=planned, price=None)
    seconds = project(measured, plan, 8)
    assert {part: taken for part, taken in seconds.items() if part == "LLM"} == expected


def test_tokens_a_second() -> None:
    measured = Measured(STEADY, totals({"train": 16}, {"train": 4.0}))
    assert measured.tokens_per_second == 40.0


def notes(measured: Measured, plan: Plan) -> str:
    return "\n".join([*rates(measured), caveats(measured, plan, project(measured, plan, 8))])


def test_what_was_not_measured_is_said() -> None:
    said = notes(Measured(STEADY, totals({"train": 16}), 3 * 2**30, 2**30, 8 * 2**30), PLANNED)
    assert "peak memory 3.0 GiB; peak GPU memory 1.0 GiB of 8.0 GiB" in said
    assert "assumed to be as fast as training: verify, evaluate." in said
    assert "No evolution fell due: the time of LLM calls is not included." in said
    static = Plan({"train": 80, "evaluate": 30}, calls=0, price=None)
    said = notes(Measured(STEADY[:1], totals({"train": 8})), static)
    assert "LLM" not in said
    assert "GPU" not in said
    assert "based on one step, warm-up included" in said
