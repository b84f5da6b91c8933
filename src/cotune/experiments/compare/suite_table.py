"""A suite's main table: for the console, and as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cotune.experiments.compare.suite_summary import Ends, SuiteMethod, SuiteSummary
from cotune.utils.text import one_line

_NONE = "–"
_MARKDOWN = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)


class _Numbers:
    """How scores are told: as per cent, intervals in whole ones, or all with three digits."""

    def __init__(self, shares: bool) -> None:
        self._shares = shares

    def score(self, value: float | None) -> str:
        if value is None:
            return _NONE
        return f"{value * 100:.1f}" if self._shares else f"{value:.3f}".replace("-", "−")

    def change(self, value: float | None) -> str:
        if value is None:
            return _NONE
        text = f"{value * 100:+.1f}" if self._shares else f"{value:+.3f}"
        return text.replace("-", "−")

    def ends(self, ends: Ends | None) -> str:
        if ends is None:
            return _NONE
        if self._shares and ends[0] >= 0:
            return "–".join(f"{end * 100:.0f}" for end in ends)
        told = (f"{end * 100:.0f}" if self._shares else f"{end:.3f}" for end in ends)
        return " to ".join(told).replace("-", "−")


def suite_table(summary: Mapping[str, Any]) -> Table:
    """The main table of a suite for the console: a row a method, grouped, with what went wrong.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not what a suite writes.
    """
    suite = SuiteSummary.of(summary)
    table = Table(
        title=Text(_title(suite)),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    columns = _console_columns(suite, _Numbers(suite.shares))
    table.add_column("method")
    for name, _ in columns:
        table.add_column(Text(one_line(name)), justify="right")
    for _, heading, methods in suite.grouped:
        table.add_row(Text(one_line(heading), style="dim"))
        for method in methods:
            told = Text(f"  {one_line(method.title)}")
            if method.trouble:
                standing = one_line(method.standing(len(suite.seeds)))
                told.append(f" ({standing})", style="yellow")
            table.add_row(told, *(show(method) for _, show in columns))
    if troubles := _troubles(suite):
        table.caption = Text("\n".join(troubles), style="yellow")
        table.caption_justify = "left"
    return table


def _title(suite: SuiteSummary) -> str:
    parts = [f"{suite.name}: held-out {suite.what}{', per cent' if suite.shares else ''}"]
    if suite.n:
        parts.append(f"{suite.n:,} questions")
    if suite.seeds:
        parts.append(f"{len(suite.seeds)} seed{'s' * (len(suite.seeds) != 1)}")
    if suite.baseline:
        parts.append(f"gains over {suite.baseline_title}")
    return one_line(", ".join(parts))


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
            standing = method.standing(len(suite.seeds))
            name += f" ({_escaped(standing)})" if standing else ""
            name += f" [{suite.notes.index(method.note) + 1}]" if method.note else ""
            lines.append(_row([name, *(show(method) for _, show in columns)]))
    below = [f"- {_escaped(trouble)}" for trouble in _troubles(suite)]
    below += [f"- [{i}] {_escaped(note)}" for i, note in enumerate(suite.notes, 1)]
    return "\n".join([*lines, *(["", *below] if below else [])])


def markdown_of(folder: Path) -> str:
    """`suite_markdown` of a suite's folder, finished or not.

    Raises:
        ConfigError: the folder holds no suite.
    """
    from cotune.experiments.compare.progress import summary_so_far

    return suite_markdown(summary_so_far(folder))


_Column = tuple[str, Callable[[SuiteMethod], str]]


def _console_columns(suite: SuiteSummary, numbers: _Numbers) -> list[_Column]:
    """The columns in fewer: an interval stands with its number, the class with the rollouts."""
    told = {name: show for name, show in _columns(suite, numbers) if not name.startswith("seeds ")}
    score, ends, paid = told.pop(suite.what), told.pop("95 %"), told.pop("paid")
    told.pop("compute", None)

    def scored(method: SuiteMethod) -> str:
        return f"{score(method)} ({ends(method)})" if method.interval else score(method)

    def compute(method: SuiteMethod) -> str:
        return f"{method.compute} {paid(method)}" if method.compute else paid(method)

    short = {f"gain over {suite.baseline_title}, 95 %": "gain, 95 %", "P(improvement)": "P(impr.)"}
    middle = [(short.get(name, name), show) for name, show in told.items()]
    return [("score, 95 %", scored), *middle, ("paid", compute)]


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
        (suite.what, lambda method: numbers.score(method.score)),
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


def _troubles(suite: SuiteSummary) -> list[str]:
    """What a reader has to know before the figures: which runs are missing, and what is unequal."""
    missing = [suite.missing] if suite.missing else []
    others = [
        f"{method.title} ({method.trouble}): {method.problem or 'no reason recorded'}"
        for method in suite.methods
        if method.trouble and (not method.missing or method.status == "unequal")
    ]
    return [one_line(text) for text in [*missing, *others]]


def _escaped(text: str) -> str:
    """Text on one line that Markdown takes for nothing but text."""
    return one_line(text).translate(_MARKDOWN)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
