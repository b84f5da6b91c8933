"""The table of events agrees with the places that record them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from cotune.run.events import EVENTS

ROOT = Path(__file__).parents[2] / "src" / "cotune"


def recorded() -> Iterator[tuple[str, str, set[str | None]]]:
    """Yield place, kind and fields of each call of a `record` or `event` with a constant kind."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", "")).lstrip("_")
            kind = node.args[0]
            if name in ("record", "event") and isinstance(kind, ast.Constant):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield place, str(kind.value), {keyword.arg for keyword in node.keywords}


def test_what_is_recorded_is_in_the_table_with_all_its_fields() -> None:
    calls = list(recorded())
    # The record itself marks where an attempt begins.
    assert {kind for _, kind, _ in calls} == EVENTS.keys() - {"cut_back"}
    wrong: list[str] = []
    for place, kind, fields in calls:
        declared = set(EVENTS[kind].fields)
        some = None in fields  # with **fields
        if fields - {None} != declared and not (some and fields - {None} <= declared):
            wrong.append(f"{place}: {kind} has {sorted(map(str, fields))}")
    assert not wrong
