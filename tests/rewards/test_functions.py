"""Reward functions: called as TRL calls them, on real prompts and own tokens; faults in one line."""

import asyncio
import functools
import json
import pickle
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.errors import ConfigError
from cotune.rewards.functions import FEEDBACK_CHARS, RewardFunctions, WeightedReward
from cotune.types import Assignment, Prompt, Task, Trajectory, Turn
from tests.helpers import make_trajectory, raises_line

INSTRUCTION = "Do it."
CHAT = {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q0?"}]}


def environment() -> TaskEnvironment:
    return SingleTurnEnvironment({}, INSTRUCTION)


def rollout(
    index: int = 0,
    texts: Sequence[str] = ("yes",),
    columns: Mapping[str, Any] | None = None,
    answers: tuple[str, ...] = ("yes",),
    chat: bool = False,
) -> Trajectory:
    """A rollout of task t<index>, sampled under a hint, with an observation after each turn."""
    task = Task(f"t{index}", f"q{index}?", answers, chat=chat, columns=columns or {})
    sampled, trained = Prompt(INSTRUCTION, "A hint."), Prompt(INSTRUCTION)
    turns = tuple(Turn(text, observation=" seen") for text in texts)
    assignment = Assignment(task, sampled, trained, "i0", index)
    tokens = {"completion_ids": (1, 2, 3, 0), "mask": (1, 0, 1, 0)}
    answer = texts[-1] if texts else None
    return make_trajectory(assignment, 0.0, turns=turns, answer=answer, **tokens)


def score(*functions: Any, rollouts: Sequence[Trajectory] | None = None) -> list[Trajectory]:
    batch = [rollout(0), rollout(1)] if rollouts is None else rollouts
    return RewardFunctions(functions)(batch, environment())


def error_of(*functions: Any, rollouts: Sequence[Trajectory] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        score(*functions, rollouts=rollouts)
    text = str(caught.value)
    assert text.startswith("rewards: ")
    assert "\n" not in text
    return text


def weigh(function: Any, weight: Any) -> WeightedReward:
    return WeightedReward(function=function, weight=weight)


# ---- what functions are given


def test_plain_questions_give_texts_and_columns() -> None:
    arguments: dict[str, Any] = {}

    def spy(completions: Sequence[Any], **others: Any) -> list[float]:
        arguments.update(others, completions=completions)
        return [1.0] * len(completions)

    turns = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    columns = {"question": "q?", "examples": turns}  # a conversation beside the question
    score(spy, rollouts=[rollout(i, ("a", "b"), {**columns, "level": i}) for i in range(2)])
    expected = {
        "prompts": ["Do it.\n\nq0?", "Do it.\n\nq1?"],
        "completions": ["ab", "ab"],
        "completion_ids": [[1, 2, 3], [1, 2, 3]],
        "question": ["q?"] * 2,
        "examples": [turns] * 2,
        "level": [0, 1],
        "ground_truths": [["yes"], ["yes"]],
    }
    assert arguments == arguments | expected
    # A column goes before our ground truths, and is None where a row lacks it.
    columns = {"ground_truths": "raw", "completions": "x"}
    score(spy, rollouts=[rollout(0, columns=columns), rollout(1, columns={"b": 2})])
    expected = {"ground_truths": ["raw", None], "completions": ["yes", "yes"], "b": [None, 2]}
    assert arguments == arguments | expected
    # A function that changes a column changes its own copy.
    columns = {"words": ["a", "b"]}
    rows = [rollout(i, columns=columns) for i in range(2)]
    results = score(lambda words: [float(len([*row, row.clear()])) for row in words], rollouts=rows)
    assert [t.reward for t in results] == [3.0, 3.0]
    assert columns == {"words": ["a", "b"]}


def test_what_trl_gives_besides() -> None:
    def staged(
        completions: list[str], trainer_state: Any, log_extra: Any, log_metric: Any
    ) -> list[float]:
        log_extra("seen", completions)
        for text in completions:
            log_metric("length", len(text))
            log_metric("odd", float("nan"))
        return [float(trainer_state.global_step)] * len(completions)

    functions = RewardFunctions([staged])
    functions.trainer_state = types.SimpleNamespace(global_step=7)
    results = functions([rollout(0, ("abcd",)), rollout(1, ("ab",))], environment())
    assert [(t.reward, t.extra["seen"]) for t in results] == [(7.0, "abcd"), (7.0, "ab")]
    assert [t.logged for t in results] == [{"length": 3.0}] * 2


# ---- feedback


def exact(completions: list[str]) -> list[Any]:
    return [(0.25, " The sum is off by 3.\n"), [1, ""]]


def brief(completions: list[str]) -> list[Any]:
    return [(np.float32(0.5), "a" * 9000 + "end"), 1.0]


def test_a_text_beside_a_value_is_feedback() -> None:
    alone = score(exact)
    assert [(t.reward, t.feedback) for t in alone] == [(0.25, "The sum is off by 3."), (1.0, "")]
    first, second = score(exact, weigh(brief, 2.0))
    assert (first.reward, second.reward) == (1.25, 3.0)
    assert first.parts == {"exact": 0.25, "brief": 0.5}
    assert first.feedback.startswith("exact: The sum is off by 3.\nbrief: aaa")
    assert first.feedback.endswith("end")
    assert len(first.feedback) < FEEDBACK_CHARS + 100
    assert second.feedback == ""


# ---- kinds of functions


def test_a_function_that_returns_none_is_left_out_of_that_sum() -> None:
    def even(completions: list[str], level: list[int]) -> list[Any]:
        return [1.0 if n % 2 == 0 else None for n in level]

    async def small(completions: list[str], level: list[int]) -> list[Any]:
        return [(0.5, "small") if n < 2 else (None, "large") for n in level]

    functions = RewardFunctions([weigh(even, 2.0), small])
    results = functions([rollout(n, columns={"level": n}) for n in range(4)], environment())
    assert [t.reward for t in results] == [2.5, 0.5, 2.0, 0.0]
    assert [dict(t.parts) for t in results[1:]] == [{"small": 0.5}, {"even": 1.0}, {}]
    assert [t.scored for t in results] == [True, True, True, False]
    assert [t.feedback for t in results] == ["small: small"] * 2 + ["small: large"] * 2


class Length:
    def __init__(self, unit: int) -> None:
        self.unit = unit

    def __call__(self, completions: list[str], **_: Any) -> list[float]:
        return [len(text) / self.unit for text in completions]


def scaled(completions: list[str], factor: float, **_: Any) -> list[float]:
    return [factor] * len(completions)


def test_names_and_weights_of_every_kind_of_function() -> None:
    functions = RewardFunctions(
        [
            Length(3),
            functools.partial(scaled, factor=2.0),
            weigh(functools.partial(scaled, factor=3.0), -0.5),
            lambda completions: [4.0] * len(completions),
            "exact_match",
        ]
    )
    assert functions.names == ("Length", "scaled", "scaled_2", "lambda", "exact_match")
    (result,) = functions([rollout()], environment())
    assert list(result.parts.values()) == [1.0, 2.0, 3.0, 4.0, 1.0]
    assert result.reward == 6.5
    assert pickle.loads(pickle.dumps(result)) == result  # noqa: S301


def test_async_functions_run_together_and_on_the_same_loop_each_time() -> None:
    # It is passed only by both at the same time, and stays with the loop of its first use.
    barrier = asyncio.Barrier(2)
    threads = set[int]()

    async def meet(completions: list[str]) -> list[float]:
        threads.add(threading.get_ident())
        async with asyncio.timeout(10):
            await barrier.wait()
        return [1.0] * len(completions)

    functions = RewardFunctions([meet, functools.partial(meet)])

    async def notebook() -> Trajectory:
        return functions([rollout()], environment())[0]

    assert functions([rollout()], environment())[0].reward == 2.0
    # A loop may already run.
    assert asyncio.run(notebook()).reward == 2.0
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    "values",
    [
        (np.float32(0.5), True),
        torch.nn.Parameter(torch.tensor([0.5, 1.0])),
        [torch.tensor(0.5), torch.tensor(1)],
        iter([0.5, 1]),
    ],
)
def test_numbers_of_every_kind(values: Any) -> None:
    rewards = [t.reward for t in score(lambda completions: values)]
    assert rewards == [0.5, 1.0]
    assert all(type(reward) is float for reward in rewards)


def test_no_rollouts_call_nothing() -> None:
    assert score(lambda: 1 / 0, rollouts=[]) == []


# ---- what is wrong


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ([1.0], ["f returned [1.0]; expected a list of 2 numbers, one for each completion"]),
        ([float("nan"), 1.0], ["f returned nan for task t0", "a finite number, None where"]),
        ([1.0, "2"], ["f returned '2' for task t1"]),
        ([(1.0, None), 0], ["f returned (1.0, None) for task t0; expected a finite number", "or a pair"]),
        ((0.0, "why"), ["f returned 'why' for task t1"]),
        ("ab", ["f returned 'ab'; expected a list"]),
        (torch.tensor(1.0), ["f returned 1.0; expected a list of 2 numbers"]),
    ],
)  # fmt: skip
def test_values_that_are_no_rewards(values: Any, parts: list[str]) -> None:
    def f(completions: list[str]) -> Any:
        return values

    text = error_of(f)
    for part in parts:
        assert part in text


def test_columns_and_answers_that_the_data_lacks() -> None:
    def graded(completions: list[str], gold: list[str]) -> list[float]:
        return [1.0] * len(completions)

    tasks = [Task("a", "q", ("x",), columns={"answer": "x"}), Task("b", "q", ())]
    with raises_line("graded needs the column 'gold', but the data has answer; rename"):
        RewardFunctions([graded]).check_tasks(tasks, "train")
    # Our own rewards need answers.
    functions = RewardFunctions(["exact_match"])
    functions.check_tasks(tasks[:1], "train")
    with raises_line("task b of the test split has none", "dataset.columns: {answers: …}"):
        functions.check_tasks(tasks, "test")


def raises(completions: list[str], gold: list[dict[str, str]]) -> list[float]:
    return [float(row["answer"]) for row in gold]


def parsed(completions: list[str]) -> list[float]:
    return [float(json.loads(text)) for text in completions]


def test_an_exception_is_said_with_function_and_line() -> None:
    rows = [rollout(0, columns={"gold": {"answer": "1"}}), rollout(1, columns={"gold": {}})]
    line = raises.__code__.co_firstlineno + 1
    place = f"(test_functions.py, line {line}); fix the function: it gets texts"
    for function in (raises, functools.partial(raises)):
        text = error_of(function, rollouts=rows)
        assert text.startswith(f"rewards: raises raised KeyError: 'answer' {place}")
    # In a library, the line that called it.
    line = parsed.__code__.co_firstlineno + 1
    assert f"(test_functions.py, line {line})" in error_of(parsed)


async def exits_async(completions: list[str]) -> list[float]:
    sys.exit(5)


async def cancels(completions: list[str]) -> list[float]:
    raise asyncio.CancelledError


def generates(completions: list[str]) -> Iterator[float]:
    yield 1.0
    raise KeyError("late")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (exits_async, "exits_async raised SystemExit: 5 (test_functions.py, line"),
        (cancels, "cancels raised CancelledError:"),
        (generates, "generates raised KeyError: 'late' (test_functions.py, line"),
    ],
)  # fmt: skip
def test_what_a_function_does_is_one_line(function: Any, message: str) -> None:
    assert message in error_of(function, rollouts=[rollout(0)])


def test_a_function_is_told_how_to_get_the_other_form() -> None:
    def reads_messages(completions: list[list[dict[str, str]]]) -> list[float]:
        return [float(len(c[0]["content"])) for c in completions]

    def reads_texts(completions: list[str]) -> list[float]:
        return [float(text.lower().count("e")) for text in completions]

    text = error_of(reads_messages)
    assert "it gets texts (messages: true for it in rewards gives chat messages)" in text
    assert score(WeightedReward(function=reads_messages, messages=True))[0].reward == 3.0
    chat = [rollout(0, columns=CHAT, chat=True)]
    (result,) = score(WeightedReward(function=reads_texts, messages=False), rollouts=chat)
    assert result.reward == 1.0
    text = error_of(reads_texts, rollouts=chat)
    assert "it gets chat messages (messages: false for it in rewards gives texts)" in text


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("exact", ["'exact' is unknown; expected one of exact_match, f1_squad, boxed"]),
        (None, ["rewards: there are none"]),
        ("math:pi", ["math:pi is no function"]),
    ],
)
def test_what_is_no_reward_function(function: Any, parts: list[str]) -> None:
    with raises_line(*parts):
        RewardFunctions([function] if function else [])


# ---- by name


@pytest.mark.parametrize(
    ("name", "text", "answers", "reward"),
    [
        ("exact_match", "The Yes!", ("no", "yes"), 1.0),
        ("f1_squad", "big cat", ("cat",), 2 / 3),
        ("boxed", r"So \boxed{1,024}", ("1024",), 1.0),
        ("boxed", r"So \boxed{7}", (300 * "Long " + r"\boxed{7}",), 1.0),
        ("boxed", r"<think>\boxed{7}</think>Unsure.", ("7",), 0.0),
        ("exact_match", None, ("7",), 0.0),
    ],
)
def test_our_own_rewards(
    name: str, text: str | None, answers: tuple[str, ...], reward: float
) -> None:
    texts = () if text is None else (text,)
    (result,) = score(name, rollouts=[rollout(0, texts, answers=answers)])
    assert result.parts == {name: pytest.approx(reward)}
    assert result.reward == result.parts[name]


def test_what_the_mean_is_called() -> None:
    assert RewardFunctions(["boxed"]).measure == "exact match"
    for functions in ([weigh("exact_match", 2.0)], ["exact_match", "f1_squad"], [Length(1)]):
        assert RewardFunctions(functions).measure == "mean reward"
