import datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator

from cotune.environments.tools import BadArguments, text_of, tool_of
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


class Scale:
    def weigh(self, what: str) -> float:
        """Weighs.

        Args:
            what: what to weigh.
        """
        return len(what)


def bound(**arguments: Any) -> dict[str, Any]:
    return dict(tool_of(weigh, 1.0).bind(arguments).arguments)


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


def test_a_method_leaves_out_itself() -> None:
    tool = tool_of(Scale().weigh, 1.0)

    assert list(tool.schema["function"]["parameters"]["properties"]) == ["what"]
    assert tool.function(*tool.bind({"what": "abc"}).args) == 3


def test_arguments_are_converted_where_their_type_allows() -> None:
    assert bound(what=7, times="3", unit="lb", parts=["1", 2], dry="true") == {
        "what": "7",
        "times": 3,
        "unit": Unit.LB,
        "parts": [1.0, 2.0],
        "dry": True,
    }


def test_defaults_stay_with_the_function() -> None:
    made = tool_of(weigh, 1.0).bind({"what": "a", "mode": "exact"})

    assert weigh(*made.args, **made.kwargs) == "a 1 Unit.KG None exact False"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "the argument 'what' is missing"),
        ({"what": "a", "weight": 1}, "there is no argument 'weight'; it takes what, times"),
        ({"what": "a", "times": "often"}, "the argument 'times' is \"often\": .*integer"),
        ({"what": "a", "times": 1.5}, "fractional"),
        ({"what": "a", "mode": "slow"}, "'fast' or 'exact'"),
        ({"what": ["a"]}, "valid string"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArguments, match=said):
        bound(**arguments)


def raising(value: str) -> str:
    raise KeyError(value)


def checks(what: Annotated[str, AfterValidator(raising)]) -> str:
    """Checks.

    Args:
        what: to check.
    """
    return what


def test_a_validator_that_raises_is_what_the_policy_reads() -> None:
    with pytest.raises(BadArguments, match="the argument 'what' is \"a\": KeyError: 'a'"):
        tool_of(checks, 1.0).bind({"what": "a"})


def test_an_argument_nested_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadArguments, match="the argument 'what' is nested too deeply"):
        bound(what=deep)


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


def variadic(*numbers: int) -> int:
    """Adds."""
    return sum(numbers)


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
        (untyped, "untyped cannot be a tool .*Argument a is missing a type hint.*expected for each parameter"),
        (undocumented, "undocumented has no docstring"),
        (half_documented, "half_documented cannot be a tool .*no description for the argument 'b'"),
        (variadic, r"variadic takes \*numbers"),
        (custom, "custom cannot be a tool .*Scale"),
        (unresolved, "unresolved cannot be a tool .*Nowhere"),
        (lambda a: a, "not a named function"),
        (Scale(), "not a named function"),
        (Scale, "not a named function"),
        ("weigh", "not a named function"),
    ],
)  # fmt: skip
def test_functions_that_are_no_tools_are_refused_in_a_line(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        tool_of(function, 1.0)

    assert "\n" not in str(raised.value)


def test_the_owner_of_a_method_is_named() -> None:
    with pytest.raises(ConfigError, match=r"tools: Scale\.undocumented has no"):
        tool_of(undocumented, 1.0, owner="Scale")


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_out_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(ConfigError, match="expected more than 0"):
        tool_of(weigh, seconds)


def test_results_are_texts_json_or_what_str_makes_of_them() -> None:
    assert text_of("as it is") == "as it is"
    assert text_of({"é": [1, None, True]}) == '{"é": [1, null, true]}'
    assert text_of(0.5) == "0.5"
    assert text_of(None) == "null"
    assert text_of({"at": datetime.date(2026, 1, 2)}) == '{"at": "2026-01-02"}'
    assert text_of(Decimal("1.50")) == "1.50"
    assert text_of({(1, 2): 3}) == "{(1, 2): 3}"
    endless: list[Any] = []
    endless.append(endless)
    assert text_of(endless) == "[[...]]"
