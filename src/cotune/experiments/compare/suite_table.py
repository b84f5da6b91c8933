"""A suite's tables: for the console, and the main one as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cotune.experiments.compare.suite_summary import Ends, SuiteMethod, SuiteSummary
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.utils.tables import plain_table
from cotune.utils.text import one_line

_NONE = "–"
_MARKDOWN = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
)

_Column = tuple[str, Callable[[SuiteMethod], str]]


class _Numbers:
    """Format scores: as per cent with one digit and intervals in whole per cent, or with three digits."""

    def __init__(self, shares: bool) -> None:
        self._shares = shares

    def score(self, value: float | None, sign: str = "") -> str:
        if value is None:
            return _NONE
        text = f"{value * 100:{sign}.1f}" if self._shares else f"{value:{sign}.3f}"
        return text if self._shares and not sign else text.replace("-", "−")

    def ends(self, ends: Ends | None) -> str:
        if ends is None:
            return _NONE
        told = [f"{end * 100:.0f}" if self._shares else f"{end:.3f}" for end in ends]
        return ("–" if self._shares and ends[0] >= 0 else " to ").join(told).replace("-", "−")


def suite_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return the tables that end a suite on the console: scores, quadrants, before and after, cost.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not a suite's.
    """
    suite = SuiteSummary.of(summary)
    tables = [_main_table(suite)]
    if any(method.quadrants for method in suite.methods):
        tables.append(_quadrants(suite))
    if suite.stratum_names or any(method.before is not None for method in suite.methods):
        tables.append(_by_stratum(suite))
    return [*tables, _cost(suite)]


def _main_table(suite: SuiteSummary) -> Table:
    """Return one row per method, grouped, with what went wrong."""
    title = [f"{suite.name}: held-out {suite.what}{', per cent' if suite.shares else ''}"]
    if suite.n:
        title.append(f"{suite.n:,} questions")
    title.append(f"{len(suite.seeds)} seed{'s' * (len(suite.seeds) != 1)}")
    title.append(f"gains over {suite.baseline_method.label}")
    table = Table(
        title=Text(one_line(", ".join(title))),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    columns = _columns(suite, _Numbers(suite.shares), narrow=True)
    table.add_column("method")
    for name, _ in columns:
        table.add_column(Text(one_line(name)), justify="right")
    for _, heading, methods in suite.grouped:
        table.add_row(Text(one_line(heading), style="dim"))
        for method in methods:
            told = Text(f"  {one_line(method.label)}")
            if method.trouble:
                standing = one_line(method.standing(len(suite.seeds)))
                told.append(f" ({standing})", style="yellow")
            table.add_row(told, *(show(method) for _, show in columns))
    if troubles := _troubles(suite):
        table.caption = Text("\n".join(troubles), style="yellow")
        table.caption_justify = "left"
    return table


def _by_stratum(suite: SuiteSummary) -> Table:
    """Return mean scores before and after training, also by stratum; with a focus, only its strata."""
    focus = suite.focus or ""
    strata = [name for name in suite.stratum_names if name.startswith(focus)]
    columns = ["all", *([f"{focus}…"] if focus else []), *(s.removeprefix(focus) for s in strata)]
    title = f"Held-out {suite.measure}; plain: under the initial instruction"
    table = _plain_table(title, columns)
    for method in suite.ordered:
        rows = [
            ("  before", method.before_all, method.before, method.before_by_stratum),
            ("  after", method.score_all, method.score, method.by_stratum),
        ]
        if method.scored_twice:
            rows.append(("  after, plain", method.plain_all, method.plain, method.plain_by_stratum))
        if method.score_all is not None:
            table.add_row(Text(one_line(method.label)))
        for when, overall, focused, by_stratum in rows:
            if overall is None:
                continue
            scores = [overall, *([focused] if focus else []), *map(by_stratum.get, strata)]
            cells = (_NONE if score is None else f"{score:.2f}" for score in scores)
            table.add_row(when, *cells)
    return table


def _quadrants(suite: SuiteSummary) -> Table:
    """Return each method's scores by weights and instruction, greedy and sampled."""
    numbers, average = _Numbers(suite.shares), f"avg@{suite.quadrant_samples}"
    columns = ["untrained", "untrained, prompted", "plain", "prompted", "KL"]
    table = _plain_table(f"Weights and instruction: {suite.what}", columns)
    for method in filter(lambda method: method.quadrants, suite.ordered):
        table.add_row(Text(one_line(method.label)))
        for decoding, told in (("greedy", "  greedy"), ("sampled", f"  {average}")):
            found = [method.quadrants[quadrant][decoding] for quadrant in QUADRANTS]
            cells = [f"{numbers.score(s.mean)} ({numbers.ends(s.interval)})" for s in found]
            kl = method.divergence.get("prompted") if decoding == "sampled" else None
            table.add_row(told, *cells, f"{kl.mean:.2g}" if kl else "")
    return table


def _cost(suite: SuiteSummary) -> Table:
    """Return the cost of one run of each method, as means over its seeds."""
    money = any(method.money for method in suite.methods)
    seeds = ", mean over seeds" if len(suite.seeds) > 1 else ""
    columns = [*suite.purposes, "evaluation", "generated tokens", "LLM calls"]
    columns += [*(["US dollars"] if money else []), "seconds"]
    table = _plain_table(f"Cost{seeds}", columns)
    for method in filter(lambda method: method.finished, suite.ordered):
        counts = [method.rollouts_by_purpose.get(name, 0) for name in suite.purposes]
        counts += [method.evaluation_rollouts, method.generated_tokens, method.llm_calls]
        cells = [_NONE if count is None else f"{count:,.0f}" for count in counts]
        cells += [f"{method.money or 0:.2f}"] * money
        table.add_row(Text(one_line(method.label)), *cells, f"{method.seconds or 0:,.0f}")
    return table


def _plain_table(title: str, columns: Sequence[str]) -> Table:
    """Return a table without a frame: a column of names, then numbers."""
    named = [Text(one_line(column), overflow="fold") for column in columns]
    return plain_table(Text(one_line(title)), [""], named)


def best_prompts(summary: Mapping[str, Any]) -> list[str]:
    """Return the instruction and the hints of the methods with the best scores, as lines of text.

    Only instructions that a method found itself count.
    """
    suite = SuiteSummary.of(summary)
    scored = [method for method in suite.methods if method.score is not None]
    scored.sort(key=lambda method: -(method.score or 0.0))
    lines: list[str] = []
    if best := next((m for m in scored if m.scored_twice and m.instruction), None):
        lines.append(one_line(f"best instruction ({best.label}): {best.instruction}"))
    if best := next((m for m in scored if m.hints), None):
        lines.append(one_line(f"best hints ({best.label}), with their mean reward on dev:"))
        lines += [f"  {hint.mean_dev_score:.2f}  {one_line(hint.text)}" for hint in best.hints]
    return lines


def suite_markdown(summary: Mapping[str, Any]) -> str:
    """Return the main table in Markdown, scores with three digits; problems and notes as a list.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not a suite's.
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
            name = _escaped(method.label)
            standing = method.standing(len(suite.seeds))
            name += f" ({_escaped(standing)})" if standing else ""
            name += f" [{suite.notes.index(method.note) + 1}]" if method.note else ""
            lines.append(_row([name, *(show(method) for _, show in columns)]))
    below = [f"- {_escaped(trouble)}" for trouble in _troubles(suite)]
    below += [f"- [{i}] {_escaped(note)}" for i, note in enumerate(suite.notes, 1)]
    return "\n".join([*lines, *(["", *below] if below else [])])


def _columns(suite: SuiteSummary, numbers: _Numbers, *, narrow: bool = False) -> list[_Column]:
    """Return heading and cell of each column after the method's name.

    Args:
        narrow: intervals and compute classes join their numbers; seeds and strata are left out.
    """
    seeds, baseline = [str(seed) for seed in suite.seeds], suite.baseline_method

    def with_ends(score: str, ends: Ends | None) -> str:
        return f"{score} ({numbers.ends(ends)})" if ends else score

    def gain(method: SuiteMethod) -> str:
        if method.gain is None or method is baseline:
            return ""
        return with_ends(numbers.score(method.gain, "+"), method.gain_interval)

    def improvement(method: SuiteMethod) -> str:
        chance = method.probability_of_improvement
        return "" if chance is None or method is baseline else f"{chance:.2f}"

    def paid(method: SuiteMethod) -> str:
        return _NONE if method.rollouts is None else f"{method.rollouts:,.0f}"

    def sampled(prompt: str) -> Callable[[SuiteMethod], str]:
        def cell(method: SuiteMethod) -> str:
            found = method.sampled(prompt)
            return _NONE if found is None else with_ends(numbers.score(found.mean), found.interval)

        return cell

    def divergence(method: SuiteMethod) -> str:
        found = method.divergence
        return " / ".join(f"{kl.mean:.2g}" for kl in found.values()) if found else _NONE

    def stratum(name: str) -> _Column:
        return name, lambda m: numbers.score(m.by_stratum.get(name))

    columns: list[_Column]
    if narrow:
        columns = [("score, 95 %", lambda m: with_ends(numbers.score(m.score), m.interval))]
    else:
        columns = [
            (suite.what, lambda m: numbers.score(m.score)),
            ("95 %", lambda m: numbers.ends(m.interval)),
        ]
    scored = not narrow and any(method.quadrants for method in suite.methods)
    average = f"avg@{suite.quadrant_samples}"
    if scored:
        columns.append((f"{average}, 95 %", sampled("prompted")))
    if len(seeds) > 1 and not narrow:
        by_seed = f"seeds {', '.join(seeds)}"
        scores = lambda m: " / ".join(numbers.score(m.by_seed.get(s)) for s in seeds)  # noqa: E731
        columns.append((by_seed, scores))
    if not narrow:
        columns += [stratum(name) for name in suite.stratum_names]
    named = "gain" if narrow else f"gain over {baseline.label}"
    columns.append((f"{named}, 95 %", gain))
    columns.append(("P(impr.)" if narrow else "P(improvement)", improvement))
    columns.append(("plain", lambda m: numbers.score(m.plain)))
    if scored:
        columns.append((f"plain {average}, 95 %", sampled("plain")))
        columns.append(("KL, plain / prompted", divergence))
    if narrow:
        return [*columns, ("paid", lambda m: f"{m.compute} {paid(m)}")]
    return [*columns, ("compute", lambda m: m.compute), ("paid", paid)]


def _troubles(suite: SuiteSummary) -> list[str]:
    """Return what a reader must know first: missing runs, and unequal compute."""
    missing = [suite.missing] if suite.missing else []
    others = [
        f"{method.label} ({method.trouble}): {method.problem}"
        for method in suite.methods
        if method.trouble and (not method.missing or method.status == "unequal")
    ]
    return [one_line(text) for text in [*missing, *others]]


def _escaped(text: str) -> str:
    """Return text on one line with Markdown's signs escaped."""
    return one_line(text).translate(_MARKDOWN)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
