"""Reward functions of a script: TRL's metrics of each, tools' messages, None, and models."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from trl import GRPOConfig

import cotune
from tests.examples.three_tools import FOLDER, modules
from tests.rewards.test_like_trl import classifier

POLICY = str(FOLDER / "policy")
calls: list[int] = []


def structure(completions: Sequence[Any], log_extra: Any, **_: Any) -> list[float]:
    """Return 0.1 for a call that a tool answered, as TRL's example of an agent does."""
    calls.append(len(completions))
    log_extra("calls", [sum(bool(m.get("tool_calls")) for m in c) for c in completions])
    return [0.1 * any(m["role"] == "tool" for m in completion) for completion in completions]


def sums_alone(completions: Sequence[Any], prompts: Sequence[Any], **_: Any) -> list[float | None]:
    return [None if "mean" in prompt[-1]["content"] else 0.5 for prompt in prompts]


@pytest.fixture(scope="module")
def task() -> Iterator[ModuleType]:
    with modules() as imported:
        yield imported["task"]


def arguments(folder: Path, **fields: Any) -> GRPOConfig:
    return GRPOConfig(
        str(folder / "out"), per_device_train_batch_size=16, num_generations=4, max_completion_length=96,
        max_steps=1, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, **fields,
    )  # fmt: skip


def test_trl_logs_each_function_of_a_script_with_tools(task: ModuleType, tmp_path: Path) -> None:
    trainer = cotune.JointTrainer(
        POLICY,
        [task.exact, structure, sums_alone, classifier(tmp_path / "judge")],
        arguments(tmp_path, reward_weights=[1.0, 2.0, 0.5, 0.1]),
        task.questions(16),
        tools=task.TOOLS,
        method=cotune.Static(instruction="Call a tool."),
    )
    assert not calls  # not before training, on completions that are made up
    trainer.train()

    (log,) = [row for row in trainer.state.log_history if "reward" in row]
    rollouts = trainer.joint.batch.trajectories
    for name in ("exact", "structure", "sums_alone", "judge"):
        values = [t.parts[name] for t in rollouts if name in t.parts]
        assert log[f"rewards/{name}/mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert log["reward"] == pytest.approx(sum(t.reward for t in rollouts) / len(rollouts), abs=1e-6)
    assert 0 < log["rewards/structure/mean"] <= 0.1
    assert {len(t.parts) for t in rollouts} == {3, 4}
    assert max(t.extra["calls"] for t in rollouts) > 0


def test_a_reward_that_never_matches_is_seen_in_the_first_step(
    task: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def strict(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float("<answer>" in c[-1]["content"]) for c in completions]

    trainer = cotune.JointTrainer(
        POLICY, strict, arguments(tmp_path), task.questions(16), tools=task.TOOLS,
        method=cotune.Static(instruction="Call a tool."),
    )  # fmt: skip
    trainer.train()
    (line,) = [r.getMessage() for r in caplog.records if "the reward 0, " in r.getMessage()]
    assert line.startswith("step 1: all 16 rollouts of the first step have the reward 0, ")
    answer = trainer.joint.batch.trajectories[0].answer
    assert answer is None or f'"{answer}" (expected "' in line
