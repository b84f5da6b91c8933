"""A suite's main table: for the console, and as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from cotune.console import one_line
from cotune.experiments.suite_summary import Ends, SuiteMethod, SuiteSummary, read_suite

_NONE = "–"
_MARKDOWN = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


class _Numbers:
    """How scores are told: as per cent, or with three digits."""

    def __init__(self, shares: bool) -> None:
        self._shares = shares

    def score(self, value: float | None) -> str:
        if value is None:
            return _NONE
        return f"{value * 100:.1f}" if self._shares else f"{value:.3f}"

    def change(self, value: float | None) -> str:
        if value is None:
            return _NONE
        text = f"{value * 100:+.1f}" if self._shares else f"{value:+.3f}"
        return text.replace("-", "−")

    def ends(self, ends: Ends | None) -> str:
        return " to ".join(map(self.score, ends)).replace("-", "−") if ends else _NONE


def suite_table(summary: Mapping[str, Any]) -> Table:
    """The main table of a suite for the console: a row a method, grouped, with what went wrong.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not what a suite writes.
    """
    suite = SuiteSummary.of(summary)
    unit = ", per cent" if suite.shares else ""
    questions = f", {suite.n:,} questions" if suite.n else ""
    seeds = f", {len(suite.seeds)} seed{'s' * (len(suite.seeds) != 1)}" if suite.seeds else ""
    table = Table(
        title=Text(
            f"{one_line(suite.name)}: held-out {one_line(suite.measure)}{unit}{questions}{seeds}"
        ),
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    columns = _columns(suite, _Numbers(suite.shares))
    table.add_column("method")
    for name, _ in columns:
        table.add_column(Text(one_line(name)), justify="right")
    for _, heading, methods in suite.grouped:
        table.add_section()
        table.add_row(Text(one_line(heading), style="dim"))
        for method in methods:
            told = Text(f"  {one_line(method.title)}")
            if method.trouble:
                told.append(f" ({one_line(method.trouble)})", style="yellow")
            table.add_row(told, *(show(method) for _, show in columns))
    if troubled := [method for method in suite.methods if method.trouble]:
        table.caption = Text("\n".join(map(_told, troubled)), style="yellow")
        table.caption_justify = "left"
    return table


def suite_markdown(summary: Mapping[str, Any]) -> str:
    """The same table in Markdown, scores with three digits; problems and notes follow as a list.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not what a suite writes.
    """
    suite = SuiteSummary.of(summary)
    columns = _columns(suite, _Numbers(shares=False))
    lines = [
        _row(["method", *(_escaped(name) for name, _ in columns)]),
        _row(["---", *("---:" for _ in columns)]),
    ]
    for _, heading, methods in suite.grouped:
        lines.append(_row([f"*{_escaped(heading)}*", *("" for _ in columns)]))
        for method in methods:
            name = _escaped(method.title)
            name += f" ({_escaped(method.trouble)})" if method.trouble else ""
            name += f" [{suite.notes.index(method.note) + 1}]" if method.note else ""
            lines.append(_row([name, *(show(method) for _, show in columns)]))
    below = [f"- {_escaped(_told(method))}" for method in suite.methods if method.trouble]
    below += [f"- [{i}] {_escaped(note)}" for i, note in enumerate(suite.notes, 1)]
    return "\n".join([*lines, *(["", *below] if below else [])])


def markdown_of(folder: Path) -> str:
    """`suite_markdown` of a suite's folder.

    Raises:
        ConfigError: the folder holds no suite.
    """
    return suite_markdown(read_suite(folder))


_Column = tuple[str, Callable[[SuiteMethod], str]]


def _columns(suite: SuiteSummary, numbers: _Numbers) -> list[_Column]:
    """Heading and cell of each column after the method's name."""
    seeds = [str(seed) for seed in suite.seeds]

    def stratum(name: str) -> _Column:
        return name, lambda method: numbers.score(method.by_stratum.get(name))

    def by_seed(method: SuiteMethod) -> str:
        return " / ".join(numbers.score(method.by_seed.get(seed)) for seed in seeds)

    def gain(method: SuiteMethod) -> str:
        if method.gain is None or method.name == suite.baseline:
            return ""
        told = f" ({numbers.ends(method.gain_interval)})" if method.gain_interval else ""
        return numbers.change(method.gain) + told

    def improvement(method: SuiteMethod) -> str:
        chance = method.probability_of_improvement
        return "" if chance is None or method.name == suite.baseline else f"{chance:.2f}"

    columns: list[_Column] = [
        (suite.measure, lambda method: numbers.score(method.score)),
        ("95 %", lambda method: numbers.ends(method.interval)),
    ]
    if len(seeds) > 1:
        columns.append((f"seeds {', '.join(seeds)}", by_seed))
    columns += [stratum(name) for name in suite.stratum_names]
    if suite.baseline:
        columns += [
            (f"gain over {suite.baseline_title}, 95 %", gain),
            ("P(improvement)", improvement),
        ]
    columns.append(("plain", lambda method: numbers.score(method.plain)))
    if suite.compute_classes:
        columns.append(("compute", lambda method: method.compute or _NONE))
    columns.append(
        ("paid", lambda method: _NONE if method.rollouts is None else f"{method.rollouts:,.0f}")
    )
    return columns


def _told(method: SuiteMethod) -> str:
    return one_line(f"{method.title} ({method.trouble}): {method.problem or 'no reason recorded'}")


def _escaped(text: str) -> str:
    """Text on one line that Markdown takes for nothing but text."""
    return one_line(text).translate(_MARKDOWN)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
