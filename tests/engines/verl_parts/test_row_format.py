"""What travels to veRL's agent loops comes back as it was."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.engines.verl.row_format import (
    assignment_at,
    assignments_text,
    failure_text,
    result_from,
    result_text,
    sampling_from,
    sampling_text,
)
from cotune.errors import ConfigError
from cotune.types import Assignment, Prompt, Sampling, StopReason, Task, Trajectory, Turn

TEXTS = st.one_of(st.text(), st.sampled_from(["\ud800", "\x00", "\u2028", '"}', "{{ x }}", "\r\n"]))
PROMPTS = st.builds(Prompt, TEXTS, TEXTS)
TASKS = st.builds(
    Task,
    TEXTS,
    TEXTS,
    st.lists(TEXTS, max_size=3).map(tuple),
    TEXTS,
    TEXTS,
    st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
)
ASSIGNMENT = Assignment(
    Task("q", "Which town?", ("Ur",)), Prompt("Answer.", "Plan."), Prompt("Answer."), "i3", 2
)


@given(TASKS, st.lists(st.tuples(PROMPTS, PROMPTS, TEXTS, st.integers(0, 99)), min_size=1))
def test_each_session_gets_its_own_assignment(
    task: Task, sessions: list[tuple[Prompt, Prompt, str, int]]
) -> None:
    sent = [Assignment(task, *session) for session in sessions]
    text = assignments_text(sent)
    assert [assignment_at(text, n) for n in range(len(sent))] == [(a, len(sent)) for a in sent]


def test_columns_of_a_task_do_not_travel() -> None:
    columns = {"when": object()}  # nothing that JSON could hold
    task = replace(ASSIGNMENT.task, columns=columns, context=(("system", "Be brief."),))
    came, _ = assignment_at(assignments_text([replace(ASSIGNMENT, task=task)]), 0)
    assert came.task == replace(task, columns={})


@given(st.floats(0, 2), st.lists(TEXTS, max_size=3).map(tuple), st.integers(0, 2**63 - 1))
def test_sampling(temperature: float, stop: tuple[str, ...], seed: int) -> None:
    sampling = Sampling(temperature, stop, seed)
    assert sampling_from(sampling_text(sampling)) == sampling


def rollout(**changed: object) -> Trajectory:
    whole = Trajectory(
        ASSIGNMENT,
        sampled_prompt_ids=(1, 2, 3),
        prompt_ids=(1, 3),
        completion_ids=(4, 5, 6),
        mask=(1, 0, 1),
        logprobs=(-0.1, 0.0, -1e-30),
        turns=(Turn("say \ud800", "seen\n", "search x", "no such tool"), Turn("</answer>", "")),
        stop=StopReason.TOKEN_LIMIT,
        answer="Ur",
        reward=1 / 3,
        parts={"format": 0.1},
        feedback="Too \ud800 long.",
        row=7,
        logged={"length": 2.5},
    )
    return replace(whole, **changed)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"prompt_ids": (1, 2, 3)},
        {"answer": None, "parts": {}, "logged": {}, "feedback": ""},
        {"turns": ()},
    ],
)
def test_a_rollout_is_the_same_to_the_last_digit(changed: dict[str, object]) -> None:
    sent = rollout(**changed)
    assert result_from(result_text(sent), ASSIGNMENT) == sent
    asked = replace(ASSIGNMENT, task=replace(ASSIGNMENT.task, question="Which town? It is old."))
    sent = replace(sent, assignment=asked)
    assert result_from(result_text(sent), ASSIGNMENT) == sent


def test_unknown_log_probabilities_stay_unknown() -> None:
    came = result_from(result_text(rollout(logprobs=(math.nan, 0.0, -1.0))), ASSIGNMENT)
    assert isinstance(came, Trajectory)
    assert math.isnan(came.logprobs[0])
    assert came.logprobs[1:] == (0.0, -1.0)


def test_a_failure_is_told_from_a_rollout() -> None:
    text = failure_text(ConfigError('bad "key"\n'))
    assert json.loads(text)["failed"] == "ConfigError"
    assert result_from(text, ASSIGNMENT) == ("ConfigError", 'bad "key"\n')
