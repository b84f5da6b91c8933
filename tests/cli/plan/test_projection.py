"""Projections worked by hand."""

import io

import pytest
from rich.console import Console

from cotune.cli.plan import measured_plan
from cotune.cli.plan.measured_plan import project
from cotune.config.cost import Plan
from cotune.engines.engine import Measured, MeasuredStep
from cotune.run.ledger import PURPOSES, Totals


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
    shares = project(measured, PLANNED, 8).shares
    assert shares["train"].seconds == pytest.approx(100.0)
    # 3 s of rollouts a step of 8: neither verification nor evaluation was measured.
    assert shares["verify"].seconds == pytest.approx(12 * 3 / 8)
    assert shares["evaluate"].seconds == pytest.approx(30 * 3 / 8)
    assert [share.tokens for share in shares.values()] == [800, 120, 300]
    assert [share.rollouts for share in shares.values()] == [80, 12, 30]


def test_one_step_alone_counts() -> None:
    measured = Measured((STEADY[1],), totals({"train": 8}))
    assert project(measured, PLANNED, 8).shares["train"].seconds == pytest.approx(120.0)


def test_what_was_measured_goes_at_its_own_rate() -> None:
    measured = Measured(STEADY, totals({"train": 16, "verify": 4}, {"verify": 3.0}))
    verify = project(measured, PLANNED, 8).shares["verify"]
    assert (verify.seconds, verify.tokens) == (pytest.approx(9.0), 240)


@pytest.mark.parametrize(
    ("planned", "calls", "expected"), [(6, 2, 6 * 1.5), (6, 0, None), (0, 0, 0.0)]
)
def test_llm_calls(planned: int, calls: int, expected: float | None) -> None:
    measured = Measured(STEADY, totals({"train": 16}, calls=calls, llm_seconds=1.5 * calls))
    plan = Plan(PLANNED.rollouts, calls=planned, price=None)
    projection = project(measured, plan, 8)
    assert projection.llm == expected
    rollouts = sum(share.seconds for share in projection.shares.values())
    assert projection.seconds == pytest.approx(rollouts + (expected or 0.0))


def test_tokens_a_second() -> None:
    measured = Measured(STEADY, totals({"train": 16}, {"train": 4.0}))
    assert measured.tokens_per_second == 40.0


def notes(measured: Measured, plan: Plan) -> str:
    out = io.StringIO()
    projection = project(measured, plan, 8)
    console = Console(file=out, width=1000)
    measured_plan._print_rates(measured, plan, console)  # pyright: ignore[reportPrivateUsage]
    measured_plan._print_notes(measured, plan, projection, console)  # pyright: ignore[reportPrivateUsage]
    return out.getvalue()


def test_what_was_not_measured_is_said() -> None:
    said = notes(Measured(STEADY, totals({"train": 16}), 3 * 2**30, 2**30, 8 * 2**30), PLANNED)
    assert "peak memory 3.00 GiB; peak GPU memory 1.00 of 8.0 GiB" in said
    assert "no LLM call: no evolution fell due in these steps" in said
    assert "assumed to be as fast as training: verify, evaluate." in said
    assert "LLM calls were not measured: their time is not included." in said
    static = Plan({"train": 80, "evaluate": 30}, calls=0, price=None)
    said = notes(Measured(STEADY[:1], totals({"train": 8})), static)
    assert "LLM" not in said
    assert "GPU" not in said
    assert "based on one step, warm-up included" in said
