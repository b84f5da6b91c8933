from enum import Enum
from typing import Any, Literal

import pytest

from cotune.environments.tools import tool_of
from cotune.errors import ConfigError


class Unit(Enum):
    KG = "kg"
    LB = "lb"


def weigh(
    what: str,
    times: int = 1,
    unit: Unit = Unit.KG,
    parts: list[float] | None = None,
    mode: Literal["fast", "exact"] = "fast",
    dry: bool = False,
) -> str:
    """Weighs something.

    Args:
        what: what to weigh.
        times: how often.
        unit: of the answer.
        parts: of it.
        mode: how.
        dry: whether only to pretend.

    Returns:
        The weight.
    """
    return f"{what} {times} {unit} {parts} {mode} {dry}"


class Scale: ...


def test_the_schema_is_that_of_the_signature_and_the_docstring() -> None:
    function = tool_of(weigh, 1.0).schema["function"]

    assert function["name"] == "weigh"
    assert function["description"] == "Weighs something."
    assert function["parameters"]["required"] == ["what"]
    assert function["parameters"]["properties"]["what"] == {
        "type": "string",
        "description": "what to weigh.",
    }
    assert function["parameters"]["properties"]["unit"]["enum"] == ["kg", "lb"]


def untyped(a, b: int):  # type: ignore[no-untyped-def]
    """Adds.

    Args:
        a: one.
        b: two.
    """


def undocumented(a: int) -> int:
    return a


def half_documented(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one.
    """
    return a + b


def typed_twice(a: int) -> int:
    """Adds.

    Args:
        a (int): one.
    """
    return a


def custom(scale: Scale) -> int:
    """Weighs.

    Args:
        scale: with what.
    """
    return 1


def unresolved(a: "Nowhere") -> int:  # type: ignore[name-defined]  # noqa: F821
    """Weighs.

    Args:
        a: what.
    """
    return 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "untyped cannot be a tool .*Argument a is missing a type hint.*expected a function with"),
        (undocumented, "undocumented cannot be a tool .*no docstring"),
        (half_documented, "half_documented cannot be a tool .*no description for the argument 'b'"),
        (typed_twice, 'a line "name: what it is" under "Args:", without its type'),
        (custom, "custom cannot be a tool .*Scale"),
        (unresolved, "unresolved cannot be a tool .*Nowhere"),
        (lambda a: a, "cannot be a tool"),
        (Scale(), "cannot be a tool"),
        (Scale, "cannot be a tool"),
        ("weigh", "cannot be a tool"),
    ],
)  # fmt: skip
def test_functions_that_are_no_tools_are_refused_in_a_line(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        tool_of(function, 1.0)

    assert "\n" not in str(raised.value)
