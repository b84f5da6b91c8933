import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.config.build import build_environment
from cotune.config.run_file import InstructionConfig
from cotune.data.dataset import DatasetConfig
from cotune.data.splits import SPLITS
from cotune.environments.base import missing_texts
from cotune.environments.math import (
    INITIAL_INSTRUCTION,
    NO_ANSWER,
    REQUIRED,
    MathEnvironment,
    MathOptions,
)
from cotune.errors import ConfigError
from cotune.rewards import boxed, exact_match
from cotune.rewards.boxed import BoxedReward
from cotune.types import Action, Limits, Response, StopReason, Task, Trajectory, Turn
from tests.helpers import make_trajectory, under
from tests.scripted import CharacterCodec, Reply, roll_out

CODEC = CharacterCodec()
EOS = CODEC.eos_id
TASK = Task("t1", "What is 12 + 30?", ("42", "+42"))
ONE_TURN = Limits(turns=1)


@pytest.fixture(autouse=True)
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers are compared here; only a test that undoes this may start a worker."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(boxed.subprocess, "Popen", refuse)


def environment() -> MathEnvironment:
    return MathEnvironment({"train": [TASK]})


def run(reply: Reply, limits: Limits = ONE_TURN) -> Trajectory:
    hinted = under(TASK, "Solve.", " Add the tens first.\n")
    return roll_out(environment(), [reply], [hinted], limits)[0]


def trajectory(text: str, observation: str = "", instruction: str = "i") -> Trajectory:
    made = make_trajectory(under(TASK, instruction, instruction), 0.0)
    return replace(made, turns=(Turn(text, observation),))


def test_every_turn_is_the_last():
    texts = ["So \\boxed{42}.", "42", "\\boxed{ }", "\\boxed{4", "\\boxed{wrong}"]
    invalid = Response(done=True, action="invalid", error=NO_ANSWER)
    answer = Response(done=True, action="answer")
    actions = [Action(TASK, (), text, last) for text in texts for last in (True, False)]
    expected = [answer, invalid, invalid, invalid, answer]
    assert environment().respond(actions) == [r for r in expected for _ in range(2)]


def test_an_episode_that_answers():
    text = "10 + 30 + 2 is \\boxed{41}. That is wrong. So \\boxed{ 42 }."
    got = run([*CODEC.encode(text), EOS])
    assert (got.reward, got.answer, got.stop) == (1.0, "42", StopReason.ANSWERED)
    assert got.turns == (Turn(text, "", "answer", ""),)
    # Its own EOS is trained on.
    assert got.mask == (1,) * (len(text) + 1)
    assert CODEC.decode(got.sampled_prompt_ids).startswith("Add the tens first.\n\nSolve.")
    assert CODEC.decode(got.prompt_ids) == "Solve.\n\nWhat is 12 + 30?"


def test_a_batch_is_scored_at_once_unless_a_subclass_scores_otherwise():
    class Half(MathEnvironment):
        def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
            reward, answer = super().score(trajectory)
            return reward / 2, answer

    done = [run([*CODEC.encode(f"\\boxed{{{n}}}"), EOS]) for n in (42, 43)]
    assert environment().scores(done) == [(1.0, "42"), (0.0, "43")]
    assert Half({"train": [TASK]}).scores(done) == [(0.5, "42"), (0.0, "43")]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is \\boxed{43}.", "43"),
        ("\\boxed{42} or \\boxed{43", None),
        ("<think>\\boxed{42}</think> or not", None),
    ],
)
def test_an_episode_that_fails(text: str, answer: str | None):
    got = run([*CODEC.encode(text), EOS])
    assert (got.reward, got.answer) == (0.0, answer)
    if answer is None:
        assert got.stop is StopReason.TURN_LIMIT
        assert (got.turns[0].action, got.turns[0].error) == ("invalid", NO_ANSWER)


@given(
    st.text(alphabet="\\boxed{} 42") | st.just("\\boxed{42}"),
    st.sampled_from(["\\boxed{42}", "\\boxed{", "}", "\\boxed{43}"]),
)
def test_score_ignores_prompt_and_observations(text: str, planted: str):
    env = MathEnvironment({}, reward=exact_match)
    assert env.score(trajectory(text, planted, planted)) == env.score(trajectory(text))


def built(tmp_path: Path, row: dict[str, Any]) -> list[Task]:
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
    assert {task.answers for task in built(tmp_path, row)} == {answers}


def test_a_question_without_an_answer_is_named(tmp_path: Path):
    with pytest.raises(
        ConfigError, match=r"dataset: the question train-\w+ has no answer; .*answers: …"
    ):
        built(tmp_path, {"question": "q", "solution": "no box"})


def test_an_environment_of_its_own_compares_as_mathematics(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BoxedReward, "_compare", lambda _, pair: float(pair[0] == "6 \\times 7"))
    env = environment()
    assert env.initial_instruction == INITIAL_INSTRUCTION
    assert missing_texts(INITIAL_INSTRUCTION, REQUIRED) == ""
    assert env.score(trajectory("\\boxed{6 \\times 7}")) == (1.0, "6 \\times 7")
