"""What proposers are told of an environment."""

import json
from typing import Any, Literal

import pytest

from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.environments.description import DESCRIPTION_CHARS, description_of
from cotune.environments.search import SearchEnvironment
from cotune.environments.tools import ToolEnvironment
from cotune.rewards import exact_match
from tests.helpers import tool_schema


def price(article: str, unit: Literal["piece", "dozen"] = "piece") -> float:
    """The price of an article.

    Args:
        article: its name,
            such as "lamp".
        unit: of how many pieces.

    Returns:
        In euros.
    """
    return 1.0


def test_tools_are_shown_with_docstring_and_parameters() -> None:
    first, tool = description_of(ToolEnvironment([price], {})).splitlines()

    assert first.startswith("The agent calls these tools")
    assert json.loads(tool)["description"] == "The price of an article."
    assert json.loads(tool)["parameters"]["properties"]["unit"] == {
        "type": "string",
        "enum": ["piece", "dozen"],
        "description": "of how many pieces.",
    }


def test_a_description_of_ones_own_stands_in_their_place() -> None:
    environment = ToolEnvironment([price], {})
    environment.description = "  A shop. "
    assert description_of(environment) == "A shop."
    environment.description = ""
    assert description_of(environment) == ""


def test_an_environment_without_tools_says_nothing_and_a_search_engine_its_protocol() -> None:
    assert description_of(SingleTurnEnvironment({}, "Answer.")) == ""
    engine: Any = None
    text = description_of(SearchEnvironment({}, engine, "Go.", exact_match, top_k=5))
    assert "<search> query </search>" in text
    assert "5 best passages" in text


@pytest.mark.parametrize(("tools", "words"), [(3, 20), (12, 60), (900, 9)])
def test_much_is_cut_least_important_first_and_never_exceeds_the_limit(
    tools: int, words: int
) -> None:
    environment = TaskEnvironment({}, "Go.")
    text = "word " * words
    parameters = {f"p{i}": {"type": "string", "description": text} for i in range(3)}
    environment.tools = tuple(tool_schema(f"tool_{i}", text, **parameters) for i in range(tools))

    text = description_of(environment)

    assert len(text) <= DESCRIPTION_CHARS
    if tools < 900:
        assert all(f"tool_{i}" in text for i in range(tools))
    assert ("p0" in text) == (tools == 3)
    assert text.endswith("…") == (tools == 900)
