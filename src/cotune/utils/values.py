"""Checks of values of the user's: finite numbers, ranges, URLs."""

import math
import re
from typing import Any

_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/[^\s@?#]*)?", re.ASCII)


def check_range(name: str, value: float | None, low: float, high: float) -> None:
    """Raise ValueError for a number out of range or not finite; None passes."""
    if value is not None and not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected {low} to {high}")


def check_url(name: str, text: str, path: str = "/path") -> None:
    """Raise ValueError unless a text is an http(s) URL without secrets; `path` ends the form that the error shows."""
    if not _URL.fullmatch(text):
        raise ValueError(
            f"{name} is not of the form http(s)://host[:port]{path}, without user, password, query or "
            "fragment (the value is not shown: it may contain a password)"
        )


def finite(value: Any) -> float | None:
    """Return a value as a float; None if it is not finite, or not a number (such as a text).

    >>> finite(True), finite("1"), finite(None), finite(float("nan"))
    (1.0, None, None, None)
    """
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except Exception:  # noqa: BLE001  # a huge integer, or the user's own class
        return None
    return number if math.isfinite(number) else None


def type_of(value: object) -> str:
    """Return what a value of the wrong type is, for messages that must not show it."""
    is_class = isinstance(value, type)
    return f"the class {value.__name__}" if is_class else f"of type {type(value).__name__}"
