"""How instruction and question make a prompt, and what environments share."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cotune.environments.base import (
    DESCRIPTION_CHARS,
    PromptFormat,
    SingleTurnEnvironment,
    TaskEnvironment,
    description_of,
)
from cotune.environments.search import SearchEnvironment
from cotune.environments.tools import ToolEnvironment
from cotune.errors import ConfigError
from cotune.protocols import Environment
from cotune.rewards.qa import exact_match
from cotune.types import Action, Prompt, Response, Task, Turn
from tests.helpers import add, make_trajectory, tool_schema, under

TASK = Task("t", "Why?", ())
CHAT = replace(TASK, context=(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello")))
PLAIN, HINTED = Prompt("Do."), Prompt("Do.", "Look up.")
Messages = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("options", "task", "prompt", "expected"),
    [
        ({}, TASK, PLAIN, [("user", "Do.\n\nWhy?")]),
        ({}, TASK, HINTED, [("user", "Look up.\n\nDo.\n\nWhy?")]),
        ({}, TASK, Prompt(""), [("user", "Why?")]),
        ({"placement": "after"}, TASK, PLAIN, [("user", "Why?\n\nDo.")]),
        ({"question_prefix": "Q: "}, TASK, PLAIN, [("user", "Do.\n\nQ: Why?")]),
        ({"role": "system"}, TASK, PLAIN, [("system", "Do."), ("user", "Why?")]),
        ({"role": "system"}, TASK, Prompt(""), [("user", "Why?")]),
        ({"role": "system"}, TASK, HINTED, [("system", "Do."), ("user", "Look up.\n\nWhy?")]),
        ({}, CHAT, PLAIN, [("system", "Be kind."), ("user", "Do.\n\nHi"), ("assistant", "Hello"), ("user", "Why?")]),
        ({"placement": "after"}, CHAT, HINTED, [("system", "Be kind."), ("user", "Hi\n\nDo."), ("assistant", "Hello"), ("user", "Look up.\n\nWhy?")]),
        ({"system": "replace"}, CHAT, PLAIN, [("user", "Do.\n\nHi"), ("assistant", "Hello"), ("user", "Why?")]),
        ({"role": "system"}, CHAT, PLAIN, [("system", "Be kind.\n\nDo."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")]),
        ({"role": "system", "system": "replace"}, CHAT, PLAIN, [("system", "Do."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Why?")]),
    ],
)  # fmt: skip
def test_where_the_instruction_stands(
    options: dict[str, str], task: Task, prompt: Prompt, expected: Messages
) -> None:
    messages = PromptFormat(**options).messages(task, prompt)  # type: ignore[arg-type]
    assert [(m["role"], m["content"]) for m in messages] == expected


def test_what_a_task_environment_is_without_more() -> None:
    env: Environment = TaskEnvironment({"train": [TASK]}, "Do.")
    assert (env.stop, env.required, env.tools, env.initial_instruction) == ((), (), (), "Do.")
    assert env.tasks("train") == (TASK,)
    assert env.messages(TASK, PLAIN) == [{"role": "user", "content": "Do.\n\nWhy?"}]
    assert env.respond([Action(TASK, (), "x", last=False)]) == [
        Response(done=True, action="answer")
    ]
    assert not TaskEnvironment.needs_rewards
    assert SingleTurnEnvironment.needs_rewards
    assert env.tasks("test") == ()
    with pytest.raises(ConfigError, match="split is 'tests'; expected one of train"):
        env.tasks("tests")
    with pytest.raises(ConfigError, match=r"train has several tasks with the id 't'"):
        TaskEnvironment({"train": [TASK, TASK]}, "Do.")
    # A turn of thoughts alone is invalid where an answer is needed.
    single = SingleTurnEnvironment({}, "")
    single.no_answer = "no answer"
    texts = ["<think>a</think>b", "<think>a</think>"]
    responses = single.respond([Action(TASK, (), text, last=False) for text in texts])
    assert [response.action for response in responses] == ["answer", "invalid"]


@pytest.mark.parametrize(
    ("turns", "answer"),
    [
        (("a", " b \n"), "b"),
        (("  ",), None),
        ((), None),
        (("<think>It is in France.</think>Paris",), "Paris"),
        (("the template opened it</think>\nParis",), "Paris"),
        (("<think>one</think>Pa<think>two</think>ris",), "Paris"),
        (("<think>never closed",), None),
        (("5 <thinking>",), "5 <thinking>"),
    ],
)
def test_the_answer_is_the_last_turn_without_its_thoughts(
    turns: tuple[str, ...], answer: str | None
) -> None:
    trajectory = make_trajectory(under(TASK), 0.0, turns=tuple(map(Turn, turns)))
    assert SingleTurnEnvironment({}, "").score(trajectory) == (0.0, answer)


def test_what_an_optimizer_llm_is_told_of_an_environment() -> None:
    # Tools, with docstring and parameters.
    first, tool = description_of(ToolEnvironment([add], {})).splitlines()
    assert first.startswith("The agent calls these tools")
    assert json.loads(tool)["description"] == "Adds."
    assert json.loads(tool)["parameters"]["properties"].keys() == {"a", "b"}
    # A description of one's own stands in their place.
    environment = ToolEnvironment([add], {})
    environment.description = "  A shop. "
    assert description_of(environment) == "A shop."
    environment.description = ""
    assert description_of(environment) == ""
    # Without tools nothing is said, and a search engine says its protocol.
    assert description_of(SingleTurnEnvironment({}, "Answer.")) == ""
    engine: Any = None
    text = description_of(SearchEnvironment({}, engine, "Go.", exact_match, top_k=5))
    assert "<search> query </search>" in text
    assert "5 best passages" in text
    # What is too long is cut.
    long = TaskEnvironment({}, "Go.")
    long.tools = tuple(tool_schema(f"tool_{i}", "word " * 90) for i in range(20))
    text = description_of(long)
    assert len(text) <= DESCRIPTION_CHARS
    assert text.endswith("…")
