"""Reward functions written for TRL, as they are: TRL's own, and against TRL's own call."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trl import GRPOTrainer
from trl.rewards import (
    accuracy_reward,
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    think_format_reward,
)

from cotune.environments.base import SingleTurnEnvironment
from cotune.errors import ConfigError
from cotune.rewards.functions import RewardFunctions, WeightedReward
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn
from tests.engines.trl.script_runs import begin
from tests.policy.tiny import Letters

WORLD = SingleTurnEnvironment({}, "")
THOUGHT = r"<think>half of a third</think> \boxed{\frac{1}{6}}"


def rollout(text: str, index: int, chat: bool) -> Trajectory:
    question = f"Half of a third, {index}?"
    raw: Any = [{"role": "user", "content": question}] if chat else question
    row = {"prompt": raw, "solution": r"$\frac{1}{6}$", "level": index}
    task = Task(f"t{index}", question, (), chat=chat, columns=row)
    ids = (5, 5, 5, 5) if index else (1, 2, 3, 4)
    return Trajectory(
        assignment=Assignment(task, Prompt(""), Prompt(""), "i0", index),
        sampled_prompt_ids=(1,),
        prompt_ids=(1,),
        completion_ids=(*ids, 0),
        mask=(1, 1, 1, 1, 0),
        logprobs=(0.0,) * 5,
        turns=(Turn(text),),
        stop=StopReason.ANSWERED,
    )


def rollouts(chat: bool = True) -> list[Trajectory]:
    return [rollout(THOUGHT, 0, chat), rollout(r"\boxed{\frac{1}{3}} no no no no", 1, chat)]


def test_the_functions_that_come_with_trl() -> None:
    functions = RewardFunctions(
        [
            think_format_reward,
            accuracy_reward,
            WeightedReward(function=get_cosine_scaled_reward(max_len=8), weight=0.5),
            get_repetition_penalty_reward(ngram_size=2, max_penalty=-1.0),
            get_soft_overlong_punishment(max_completion_len=4, soft_punish_cache=2),
        ]
    )
    right, wrong = functions(rollouts(), WORLD)
    assert right.parts["think_format_reward"] == 1.0
    assert wrong.parts["think_format_reward"] == 0.0
    assert right.parts["accuracy_reward"] == 1.0
    assert wrong.parts["accuracy_reward"] == 0.0
    # Half of max_len, counted in own tokens: half-way between the bounds.
    assert right.parts["cosine_scaled_reward"] == pytest.approx(0.75)
    assert wrong.parts["cosine_scaled_reward"] == pytest.approx(-0.75)
    # The second one's three pairs of tokens are equal.
    assert right.parts["repetition_penalty_reward"] == 0.0
    assert wrong.parts["repetition_penalty_reward"] == pytest.approx(-2 / 3)
    (last,) = list(right.parts)[4:]
    assert right.parts[last] == -1.0
    assert right.reward == pytest.approx(1 + 1 + 0.5 * 0.75 + 0 - 1)


def given_by_trl(function: Any, trajectories: Sequence[Trajectory], state: object) -> list[float]:
    """What a function gets and gives in TRL's own loop over reward functions."""
    trainer: Any = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=False),
        args=SimpleNamespace(report_to=[]),
        reward_funcs=[function],
        reward_processing_classes=[None],
        reward_func_names=["function"],
        state=state,
        environments=None,
        _log_completion_extra=lambda column, values: None,
        _log_metric=lambda name, value: None,
    )
    inputs = [dict(t.task.columns) for t in trajectories]
    chat = isinstance(inputs[0]["prompt"], list)
    texts = [t.own_text for t in trajectories]
    completions = [[{"role": "assistant", "content": x}] if chat else x for x in texts]
    own = [list(t.completion_ids[:-1]) for t in trajectories]
    prompts = [row["prompt"] for row in inputs]
    rewards = GRPOTrainer._calculate_rewards(trainer, inputs, prompts, completions, own)
    return rewards[:, 0].tolist()


@pytest.mark.parametrize("chat", [True, False])
def test_a_function_is_given_what_trl_gives_it(chat: bool) -> None:
    calls: list[dict[str, Any]] = []

    def spy(**given: Any) -> list[float]:
        calls.append(given)
        return [float(n) for n in given["level"]]

    state = SimpleNamespace(global_step=3)
    functions = RewardFunctions([spy])
    functions.trainer_state = state
    made = rollouts(chat)
    expected = given_by_trl(spy, made, state)
    assert [t.reward for t in functions(made, WORLD)] == expected == [0.0, 1.0]
    theirs, ours = calls
    # TRL leaves the raw prompt out; our own addition is the answers.
    assert ours.keys() - theirs.keys() == {"prompt", "ground_truths"}
    assert not theirs.keys() - ours.keys()
    for name in theirs.keys() - {"log_extra", "log_metric"}:
        assert ours[name] == theirs[name], name


# ---- in a script


class Noted:
    """A reward that keeps the trainer's step at each call."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def __call__(self, completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        self.steps.append(trainer_state.global_step)
        return [text.count("a") / max(1, len(text)) for text in completions]


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def test_a_script_is_scored_by_functions_that_see_the_trainers_state(tmp_path: Path) -> None:
    noted = Noted()
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    given = {"reward_funcs": [noted, length], "environment": Letters()}
    weighted = begin(
        tmp_path, trainer_arguments=given, max_steps=2, reward_weights=[1.0, 0.5], **saving
    )
    assert noted.steps == []  # not called before training
    weighted.trainer.train()
    assert noted.steps[:2] == [0, 1]
    for row in weighted.run.read_trajectories(1, "train"):
        parts = row["reward_parts"]
        assert row["reward"] == pytest.approx(parts["Noted"] + 0.5 * parts["length"])
    (row, _) = weighted.run.read_metrics()
    assert "reward/length" in row
    logged = weighted.trainer.state.log_history[0]
    assert logged["rewards/length/mean"] == pytest.approx(row["reward/length"])
    kept = weighted.run.read_config()["rewards"]
    names = [r["function"].rpartition(":")[2] for r in kept]
    assert list(zip(names, [r["weight"] for r in kept], strict=True)) == [
        ("Noted", 1.0),
        ("length", 0.5),
    ]
    again = begin(
        tmp_path, trainer_arguments=given, max_steps=3, reward_weights=[1.0, 0.25], **saving
    )
    with pytest.raises(ConfigError, match=r"^rewards: is not what the saved run began with"):
        again.trainer.train(resume_from_checkpoint=True)
