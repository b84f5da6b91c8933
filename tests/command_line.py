"""Command lines that tests run in their own process: the types of the fixtures in conftest.py."""

from collections.abc import Callable
from typing import NamedTuple


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    status: str | int | None
    out: str
    err: str


Command = Callable[..., Ended]
Refused = Callable[..., str]
