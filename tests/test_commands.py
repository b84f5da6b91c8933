"""Plan numbers worked by hand, and whole runs through the commands."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune import commands
from cotune.config import RunConfig, parse_config
from tests.run_files import tiny, write

OPENAI = {
    "kind": "openai",
    "model": "m",
    "max_tokens": 100,
    "retries": 1,
    "price_per_million_prompt_tokens": 1.0,
    "price_per_million_completion_tokens": 10.0,
}


def config_with(**changes: Any) -> RunConfig:
    return parse_config(tiny(Path("out"), changes), "test")


def test_rollouts_of_a_plan() -> None:
    # 3 steps × 4 questions × 2; one evolution (after step 2) × 1 round × 2 tasks × (6 + parent);
    # test of 6 before, after and under the initial instruction.
    assert commands.planned_rollouts(config_with()) == {"train": 24, "verify": 14, "evaluate": 18}


def test_rollouts_of_a_plan_with_validation() -> None:
    # Validation of 3 after steps 2 and, at the end, 3; no test before.
    found = commands.planned_rollouts(config_with(evaluation={"every": 2, "before": False}))
    assert found["evaluate"] == 2 * 3 + 2 * 6


def test_a_budget_caps_training() -> None:
    assert commands.planned_rollouts(config_with(training={"rollout_budget": 17}))["train"] == 17


def test_nothing_to_verify() -> None:
    assert "verify" not in commands.planned_rollouts(config_with(strategy={"verify": False}))
    assert "verify" not in commands.planned_rollouts(config_with(strategy={"kind": "static"}))


@pytest.mark.parametrize(
    ("steps", "every", "until", "expected"),
    # At the end of steps `every`, 2 × `every`, … below `until`, and below the last step.
    [
        (300, 15, 150, 9),
        (3, 2, 4, 1),
        (2, 2, 4, 0),
        (100, 10, 31, 3),
        (100, 10, 30, 2),
        (9, 0, 9, 0),
    ],
)
def test_evolutions(steps: int, every: int, until: int, expected: int) -> None:
    config = config_with(
        training={"steps": steps}, strategy={"evolve_every": every, "evolve_until": until}
    )
    assert commands.evolutions(config) == expected


def test_llm_calls_of_a_plan() -> None:
    assert commands.planned_calls(config_with(strategy={"verification_rounds": 5})) == 2 * 5
    assert commands.planned_calls(config_with(strategy={"kind": "static"})) == 0


def plan_text(tmp_path: Path, changes: dict[str, Any]) -> str:
    out = io.StringIO()
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out", changes))
    commands.plan(file, Console(file=out, width=200))
    assert not (tmp_path / "out").exists()
    return out.getvalue()


def test_plan_of_an_offline_run(tmp_path: Path) -> None:
    text = plan_text(tmp_path, {})
    # 24 rollouts × 3 turns × 24 tokens.
    assert "1,728" in text
    assert "offline rules (reflected); at most 2 proposals, free of charge" in text


def test_plan_prices_an_endpoint(tmp_path: Path) -> None:
    text = plan_text(tmp_path, {"llm": {**OPENAI, "budget": 0.5}})
    # Prompt: 2000 + 4000 + 4 failures × 4 × (384 + 200) = 15344 characters, of 4 bytes at most,
    # a token a byte and 64 of a template: 61440. 2 calls × 2 attempts × (61440 × 1 + 100 × 10).
    assert "m at api.openai.com; at most 2 proposals, at most 0.25 at the prices of llm" in text
    assert "stopped at the budget of 0.50" in text


def test_plan_shows_names_as_they_are(tmp_path: Path) -> None:
    assert "[bold]odd[/]" in plan_text(tmp_path, {"name": "[bold]odd[/]"})


def test_plan_counts_the_questions_of_files(tmp_path: Path) -> None:
    rows = [f'{{"question": "q{i}", "answers": ["a"]}}' for i in range(5)]
    for name, count in (("train", 5), ("validation", 2), ("test", 4)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:count]))
    names = ("corpus", "train", "validation", "test")
    files = {name: str(tmp_path / f"{name}.jsonl") for name in names}
    config = config_with(environment={"kind": "search", **files}, llm=OPENAI)
    assert commands.planned_rollouts(config)["evaluate"] == 3 * 4


def test_a_stop_before_the_folder_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(commands.Stopped, match="before anything was written"),
        commands._resumable(tmp_path / "out"),  # pyright: ignore[reportPrivateUsage]
    ):
        raise KeyboardInterrupt
