"""Which functions can be tools."""

from typing import Any

import pytest

from cotune.environments.tools import tool_of
from cotune.errors import ConfigError


def untyped(a, b: int):  # type: ignore[no-untyped-def]
    """Adds.

    Args:
        a: one.
        b: two.
    """


def undocumented(a: int) -> int:
    return a


def typed_twice(a: int) -> int:
    """Adds.

    Args:
        a (int): one.
    """
    return a


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
        (typed_twice, 'a line "name: what it is" under "Args:", without its type'),
        (unresolved, "unresolved cannot be a tool .*Nowhere"),
        ("weigh", "cannot be a tool"),
    ],
)  # fmt: skip
def test_functions_that_are_no_tools_are_refused_in_a_line(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        tool_of(function, 1.0)

    assert "\n" not in str(raised.value)
