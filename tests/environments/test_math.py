import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cotune.environments.base import missing_texts
from cotune.environments.math import (
    INITIAL_INSTRUCTION,
    NO_ANSWER,
    REQUIRED,
    MathEnvironment,
    MathOptions,
    math_environment,
    read_problems,
)
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards import boxed, exact_match
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.testing import CharacterCodec, Reply, ScriptedSampler
from cotune.types import (
    Action,
    Assignment,
    Limits,
    Prompt,
    Response,
    Sampling,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

CODEC = CharacterCodec()
EOS = CODEC.eos_id
TASK = Task("t1", "What is 12 + 30?", ("42", "+42"))
PLAIN = Prompt("Solve.")
HINTED = Prompt("Solve.", " Add the tens first.\n")
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
    env = environment()
    sampler = ScriptedSampler(CODEC, [reply])
    assignment = Assignment(TASK, HINTED, PLAIN, "i0", 0)
    session = sampler.open(Sampling(stop=env.stop))
    (got,) = run_episodes(new_episodes([assignment], env, CODEC, limits), env, session)
    return got


def trajectory(text: str, observation: str = "", instruction: str = "i") -> Trajectory:
    prompt = Prompt(instruction, instruction)
    assignment = Assignment(TASK, prompt, prompt, "i0", 0)
    turns = (Turn(text, observation),)
    return Trajectory(assignment, (1,), (1,), (2,), (1,), (0.0,), turns, StopReason.ANSWERED)


def test_it_is_an_environment():
    env: Environment = environment()
    assert env.stop == ()
    assert env.initial_instruction == "Solve the problem. Put the final answer in \\boxed{}."
    assert env.tasks("train") == (TASK,)
    with pytest.raises(ConfigError, match="'dev'; expected one of train"):
        env.tasks("dev")


def test_messages_put_the_hint_first():
    env = environment()
    content = "Solve.\n\nWhat is 12 + 30?"
    assert env.messages(TASK, PLAIN) == [{"role": "user", "content": content}]
    assert env.messages(TASK, HINTED) == [
        {"role": "user", "content": "Add the tens first.\n\n" + content}
    ]
    assert env.messages(TASK, Prompt("Solve.", " \n")) == env.messages(TASK, PLAIN)


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
    [("It is \\boxed{43}.", "43"), ("It is 42.", None), ("\\boxed{42} or \\boxed{43", None)],
)
def test_an_episode_that_fails(text: str, answer: str | None):
    got = run([*CODEC.encode(text), EOS])
    assert (got.reward, got.answer) == (0.0, answer)
    if answer is None:
        assert got.stop is StopReason.TURN_LIMIT
        assert (got.turns[0].action, got.turns[0].error) == ("invalid", NO_ANSWER)


def test_an_answer_cut_off_by_the_token_limit_does_not_count():
    text = "It is \\boxed{42}"
    got = run(text, Limits(turns=1, turn_tokens=len(text) - 1))
    assert (got.reward, got.answer, got.stop) == (0.0, None, StopReason.TURN_TOKENS)
    # Cut off, not ended: the closing EOS is not the policy's.
    assert (got.completion_ids[-1], got.mask[-1]) == (EOS, 0)
    got = run(text, Limits(turns=1, turn_tokens=len(text)))
    assert (got.reward, got.answer, got.stop) == (1.0, "42", StopReason.TURN_TOKENS)


def test_one_turn_also_where_the_limits_allow_more():
    got = run([*CODEC.encode("no idea"), EOS], Limits(turns=4))
    assert len(got.turns) == 1
    assert (got.reward, got.answer) == (0.0, None)


@given(
    st.text(alphabet="\\boxed{} 42") | st.just("\\boxed{42}"),
    st.sampled_from(["\\boxed{42}", "\\boxed{", "}", "\\boxed{43}"]),
)
def test_score_ignores_prompt_and_observations(text: str, planted: str):
    env = MathEnvironment({}, reward=exact_match)
    assert env.score(trajectory(text, planted, planted)) == env.score(trajectory(text))


def test_any_reward_scores():
    env = MathEnvironment({}, reward=lambda answer, truths: float(answer == truths[0][::-1]))
    assert env.score(trajectory("\\boxed{24}")) == (1.0, "24")


def test_a_repeated_id_is_a_set_up_error():
    with pytest.raises(ConfigError, match=r"environment.test has several tasks .* 't1'"):
        MathEnvironment({"test": [TASK, TASK]})


Write = Callable[..., MathOptions]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Options whose training file has these lines; the other splits one problem each."""

    def options(*rows: object, **fields: object) -> MathOptions:
        paths = {split: tmp_path / f"{split}.jsonl" for split in ("train", "validation", "test")}
        other = {"question": "1 + 1?", "answer": 2}
        for split, path in paths.items():
            lines = rows if split == "train" else (other,)
            path.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")
        return MathOptions(**paths, **fields)  # type: ignore[arg-type]

    return options


def read(options: MathOptions) -> list[Task]:
    return read_problems(options.train, "train", options)


def test_a_users_problems(write: Write):
    env = math_environment(
        write(
            {"id": 7, "question": " 1 + 2? ", "answers": ["3", 3.5], "stratum": "easy"},
            {"question": "2 + 2?", "answer": 4, "solution": "Count.", "id": None},
        )
    )
    first, second = env.tasks("train")
    assert first.columns == {
        "id": 7,
        "question": " 1 + 2? ",
        "answers": ["3", 3.5],
        "stratum": "easy",
    }
    assert replace(first, columns={}) == Task("7", "1 + 2?", ("3", "3.5"), "easy")
    assert (second.answers, second.stratum, second.solution) == (("4",), "", "Count.")
    assert second.id.startswith("train-")
    assert env.initial_instruction == INITIAL_INSTRUCTION
    assert [len(env.tasks(split)) for split in ("validation", "test")] == [1, 1]


def test_the_schemas_of_common_data_sets(write: Write):
    solution = "Half of it: \\boxed{\\frac{1}{2}}."
    (task,) = read(
        write(
            {"problem": "MATH?", "level": "Level 5", "type": "Algebra", "solution": solution},
            stratum_column="level",
        )
    )
    assert task.answers == ("\\frac{1}{2}",)
    assert (task.stratum, task.solution) == ("Level 5", solution)
    (task,) = read(write({"question": "Which?", "answer": "So \\boxed{2}, \\boxed{3}."}))
    assert task.answers == ("2, 3",)
    (task,) = read(write({"question": "GSM8K?", "answer": "48 / 2 = 24.\n#### 1,024"}))
    assert task.answers == ("1,024",)
    assert task.solution == "48 / 2 = 24.\n#### 1,024"
    (task,) = read(
        write(
            {"text": "DeepMath?", "gold": "\\boxed{0}", "difficulty": 8.5, "r1": "Long."},
            question_column="text",
            answer_column="gold",
            stratum_column="difficulty",
            solution_column="r1",
        )
    )
    assert (task.question, task.answers) == ("DeepMath?", ("0",))
    assert (task.stratum, task.solution) == ("8.5", "Long.")


QUESTION = {"question": "q"}


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([], {}, r"environment\.train: .*train\.jsonl is empty; expected rows of"),
        (["text"], {}, r"line 1: 'text'; expected a JSON object"),
        ([{"answer": "1"}], {}, r'no field "question", only answer; add .*question_column'),
        ([{"question": "q"}], {"question_column": "p"}, r'no field "p", only question'),
        ([{"question": " ", "answer": 1}], {}, r'"question" is \' \'; expected text'),
        ([QUESTION], {}, r'no field "answers", only question; add it, or set .*answer_column'),
        ([QUESTION | {"answer": 1}], {"answer_column": "a"}, r'no field "a", only question, an'),
        ([QUESTION | {"solution": "no box"}], {}, r'no field "answers"'),
        ([QUESTION | {"answers": []}], {}, r'"answers" is \[\]; expected text, a number or'),
        ([QUESTION | {"answers": ["1", None]}], {}, r"is \['1', None\]; expected text"),
        ([QUESTION | {"answer": True}], {}, r'"answer" is True; expected'),
        ([QUESTION | {"answer": float("nan")}], {}, r'"answer" is nan; expected'),
        ([QUESTION | {"answer": "\\boxed{ }"}], {}, r"the answer .* is blank at its end"),
        ([QUESTION | {"answer": "So: ####"}], {}, r"the answer 'So: ####' is blank at its end"),
        ([QUESTION | {"answer": 1, "id": 1.5}], {}, r'"id" is 1.5; expected text or an integer'),
        ([QUESTION | {"answer": 1, "stratum": ["a"]}], {}, r'"stratum" is \[\'a\'\]; expected'),
        ([QUESTION | {"answer": 1, "id": "a"}] * 2, {}, r"line 2: the task 'a' came before"),
    ],
)
def test_bad_lines_are_named(
    write: Write, rows: list[object], fields: dict[str, object], message: str
):
    with pytest.raises(ConfigError, match=message) as caught:
        read(write(*rows, **fields))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("environment.train: ")


def test_a_number_too_long_for_a_float_is_an_answer(write: Write):
    (task,) = read(write(QUESTION | {"answer": 10**400}))
    assert task.answers == ("1" + "0" * 400,)


def test_options_refuse_what_cannot_work(write: Write):
    options = write(QUESTION | {"answer": 1})
    paths = {name: str(getattr(options, name)) for name in ("train", "validation", "test")}
    adapter = TypeAdapter(MathOptions)
    assert adapter.validate_python(paths) == options
    for field, value, message in [
        ("seconds", 0, "environment.seconds is 0.0; expected more than 0"),
        ("seconds", float("inf"), "environment.seconds is inf"),
        ("initial_instruction", "Solve.", r"environment.initial_instruction names no \\boxed"),
        # What YAML makes of "\boxed" between double quotes.
        ("initial_instruction", "In \boxed{}.", r"names no \\boxed; expected .* YAML"),
        ("answers", "a", "answers"),
    ]:
        with pytest.raises(ValidationError, match=message):
            adapter.validate_python({**paths, field: value})
    assert missing_texts(INITIAL_INSTRUCTION, REQUIRED) == ""


def test_options_reach_the_reward(write: Write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    row = QUESTION | {"answer": 42}
    for plain_integers, expected in [(True, 0.0), (False, 1.0)]:
        env = math_environment(write(row, plain_integers=plain_integers, seconds=30.0))
        assert env.score(trajectory("\\boxed{6 \\times 7}")) == (expected, "6 \\times 7")
