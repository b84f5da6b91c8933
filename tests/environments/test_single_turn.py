"""The shortest path: a data set and a reward function, nothing else. As a user starts it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cotune
from cotune.config.build import build_environment
from cotune.config.run_file import InstructionConfig
from cotune.data.dataset import DatasetConfig
from cotune.data.splits import SPLITS
from cotune.environments.single_turn import (
    INITIAL_INSTRUCTION,
    REQUIRED,
    MathEnvironment,
    MathOptions,
)
from cotune.errors import ConfigError
from cotune.rewards.boxed import BoxedReward
from cotune.rewards.qa import exact_match
from cotune.types import Action, Limits, Response, StopReason, Task, Trajectory, Turn
from tests.helpers import jsonl, make_trajectory, under
from tests.policy.tiny import small_policy
from tests.run_files import tiny
from tests.scripted import CharacterCodec, Reply, roll_out

REWARDS = """
def vowels(completions, level, log_metric, **kwargs):
    log_metric("characters", sum(map(len, completions)) / len(completions))
    shares = [sum(c in "aeiou" for c in text) / max(1, len(text)) for text in completions]
    return [share / n for share, n in zip(shares, level, strict=True)]


async def short(completions, prompts, **kwargs):
    assert all("Question" in p for p in prompts)
    return [1.0 if len(text) < 40 else 0.0 for text in completions]
"""


def test_a_program_trains_on_a_data_set_and_reward_functions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [{"question": f"Question {i}?", "level": 1 + i % 2} for i in range(20)]
    file = tmp_path / "rewards.py"
    file.write_text(REWARDS)
    fields = tiny(
        tmp_path / "out",
        {
            "policy": {"path": small_policy()},
            "strategy": {"kind": "static"},
            "training": {"steps": 1, "save_every": 1},
            "limits": {"turns": 1},
            "dataset": {"path": str(jsonl(tmp_path / "a.jsonl", data)), "validation": 2, "test": 3},
            "rewards": [f"{file}:vowels", {"function": f"{file}:short", "weight": 0.25}],
        },
    )
    del fields["environment"]
    run = cotune.open_run(cotune.train(fields, quiet=True))
    assert capsys.readouterr().out == ""
    rows = run.read_trajectories(1, "train")
    for row in rows:
        parts = row["reward_parts"]
        assert row["reward"] == pytest.approx(parts["vowels"] + 0.25 * parts["short"])
        assert parts["vowels"] <= 1 / (1 + int(row["task"]["question"][9:-1]) % 2)
    (metrics,) = run.read_metrics()
    mean = sum(row["reward_parts"]["vowels"] for row in rows) / len(rows)
    assert metrics["reward/vowels"] == pytest.approx(mean)
    length = sum(len(row["turns"][0]["text"]) for row in rows) / len(rows)
    assert metrics["reward_metric/characters"] == pytest.approx(length)
    (before,) = [e for e in run.read_events() if e.get("when") == "before"]
    assert (before["measure"], before["n"]) == ("mean reward", 3)
    assert "xact match" not in (run.path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="this run is finished; see its report"):
        cotune.resume(run.path)
    with pytest.raises(ConfigError, match=r"^run_file: training.stepz: unknown"):
        cotune.train(fields, assignments=["training.stepz=3"])


CODEC = CharacterCodec()
EOS = CODEC.eos_id
TASK = Task("t1", "What is 12 + 30?", ("42", "+42"))
ONE_TURN = Limits(turns=1)


def environment() -> MathEnvironment:
    return MathEnvironment({"train": [TASK]})


def run(reply: Reply, limits: Limits = ONE_TURN) -> Trajectory:
    hinted = under(TASK, "Solve.", " Add the tens first.\n")
    return roll_out(environment(), [reply], [hinted], limits)[0]


def trajectory(text: str, observation: str = "", instruction: str = "i") -> Trajectory:
    hinted = under(TASK, instruction, instruction)
    return make_trajectory(hinted, 0.0, turns=(Turn(text, observation),))


def test_an_episode_that_answers() -> None:
    text = "10 + 30 + 2 is \\boxed{41}. That is wrong. So \\boxed{ 42 }."
    rollout = run([*CODEC.encode(text), EOS])
    assert (rollout.reward, rollout.answer, rollout.stop) == (1.0, "42", StopReason.ANSWERED)
    assert rollout.turns == (Turn(text, "", "answer", ""),)
    # Its own EOS is trained on.
    assert rollout.mask == (1,) * (len(text) + 1)
    assert CODEC.decode(rollout.sampled_prompt_ids).startswith("Add the tens first.\n\nSolve.")
    assert CODEC.decode(rollout.prompt_ids) == "Solve.\n\nWhat is 12 + 30?"
    # Every turn is the last.
    texts = ["So \\boxed{42}.", "42", "\\boxed{ }", "\\boxed{4", "\\boxed{wrong}"]
    invalid = Response(done=True, action="invalid", error=MathEnvironment.no_answer)
    answer = Response(done=True, action="answer")
    actions = [Action(TASK, (), text, last) for text in texts for last in (True, False)]
    expected = [answer, invalid, invalid, invalid, answer]
    assert environment().respond(actions) == [r for r in expected for _ in range(2)]

    # A batch is scored at once, unless a subclass scores otherwise.
    class Half(MathEnvironment):
        def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
            reward, answer = super().score(trajectory)
            return reward / 2, answer

    rollouts = [run([*CODEC.encode(f"\\boxed{{{n}}}"), EOS]) for n in (42, 43)]
    assert environment().scores(rollouts) == [(1.0, "42"), (0.0, "43")]
    assert Half({"train": [TASK]}).scores(rollouts) == [(0.5, "42"), (0.0, "43")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is \\boxed{43}.", "43"),
        ("\\boxed{42} or \\boxed{43", None),
        ("<think>\\boxed{42}</think> or not", None),
    ],
)
def test_an_episode_that_fails(text: str, answer: str | None):
    rollout = run([*CODEC.encode(text), EOS])
    assert (rollout.reward, rollout.answer) == (0.0, answer)
    if answer is None:
        assert rollout.stop is StopReason.TURN_LIMIT
        assert (rollout.turns[0].action, rollout.turns[0].error) == (
            "invalid",
            MathEnvironment.no_answer,
        )


@given(
    st.text(alphabet="\\boxed{} 42") | st.just("\\boxed{42}"),
    st.sampled_from(["\\boxed{42}", "\\boxed{", "}", "\\boxed{43}"]),
)
def test_score_ignores_prompt_and_observations(text: str, planted: str):
    env = MathEnvironment({}, reward=exact_match)
    assert env.score(trajectory(text, planted, planted)) == env.score(trajectory(text))


def build_tasks(tmp_path: Path, row: dict[str, Any]) -> list[Task]:
    """The tasks of a run file whose data has this row and more."""
    key = next(name for name in row if name in ("question", "problem"))
    file = tmp_path / "problems.json"
    file.write_text(json.dumps([row] + [row | {key: f"{i}?"} for i in range(40)]))
    config = DatasetConfig(path=file, validation=2, test=4, columns={"id": None})
    environment = build_environment(MathOptions(), config, InstructionConfig())
    return [task for split in SPLITS for task in environment.tasks(split)]


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"problem": "MATH?", "solution": "Half of it: \\boxed{\\frac{1}{2}}."}, ("\\frac{1}{2}",)),
        ({"question": "Which?", "answer": "So \\boxed{2}, \\boxed{3}."}, ("2, 3",)),
        ({"question": "GSM8K?", "answer": "48 / 2 = 24.\n#### 1,024"}, ("1,024",)),
        ({"question": "DeepMath?", "final_answer": "\\boxed{0}", "difficulty": 8.5}, ("0",)),
        ({"problem": "DeepScaleR?", "answer": 10**400}, ("1" + "0" * 400,)),
    ],
)
def test_the_answers_of_common_data_sets(
    tmp_path: Path, row: dict[str, Any], answers: tuple[str, ...]
):
    assert {task.answers for task in build_tasks(tmp_path, row)} == {answers}


def test_an_environment_of_its_own_compares_as_mathematics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(BoxedReward, "_compare", lambda _, pair: float(pair[0] == "6 \\times 7"))
    env = environment()
    assert env.initial_instruction == INITIAL_INSTRUCTION
    assert all(text in INITIAL_INSTRUCTION for text in REQUIRED)
    assert env.score(trajectory("\\boxed{6 \\times 7}")) == (1.0, "6 \\times 7")
    # A question without an answer is named.
    with pytest.raises(
        ConfigError, match=r"dataset: the question train-\w+ has no answer; .*answers: …"
    ):
        build_tasks(tmp_path, {"question": "q", "solution": "no box"})
