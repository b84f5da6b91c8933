"""A suite's tables for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from cotune.experiments.compare.suite_summary import Ends, SuiteSummary
from cotune.experiments.evaluate.quadrants import QUADRANTS
from cotune.utils.tables import plain_table
from cotune.utils.text import one_line

_NONE = "–"


class _Numbers:
    """Format scores: as per cent with one digit and intervals in whole per cent, or with three digits."""

    def __init__(self, shares: bool) -> None:
        self._shares = shares

    def score(self, value: float | None, ends: Ends | None = None, sign: str = "") -> str:
        """Write a score, with its interval in brackets if there is one."""
        if value is None:
            return _NONE
        text = f"{value * 100:{sign}.1f}" if self._shares else f"{value:{sign}.3f}"
        text = text if self._shares and not sign else text.replace("-", "−")
        return text if ends is None else f"{text} ({self._ends(ends)})"

    def _ends(self, ends: Ends) -> str:
        texts = [f"{end * 100:.0f}" if self._shares else f"{end:.3f}" for end in ends]
        between = "–" if self._shares and ends[0] >= 0 else " to "
        return between.join(texts).replace("-", "−")


def suite_tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return the tables that end a suite on the console: scores, quadrants, before and after, cost.

    Args:
        summary: content of the suite's summary.json.

    Raises:
        ConfigError: it is not a suite's.
    """
    suite = SuiteSummary.of(summary)
    tables = [_scores(suite)]
    if any(method.quadrants for method in suite.methods):
        tables.append(_quadrants(suite))
    if suite.stratum_names or any(method.before is not None for method in suite.methods):
        tables.append(_by_stratum(suite))
    return [*tables, _cost(suite)]


def _scores(suite: SuiteSummary) -> Table:
    """Return one row per method, grouped, with what went wrong."""
    numbers, baseline = _Numbers(suite.shares), suite.baseline_method
    title = [f"{suite.name}: held-out {suite.what}{', per cent' if suite.shares else ''}"]
    title += [f"{suite.n:,} questions"] if suite.n else []
    title += [f"{len(suite.seeds)} seed{'s' * (len(suite.seeds) != 1)}"]
    title += [f"gains over {baseline.label}"]
    table = Table(
        title=Text(one_line(", ".join(title))),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("method")
    for heading in ("score, 95 %", "gain, 95 %", "P(impr.)", "plain", "paid"):
        table.add_column(heading, justify="right")
    for _, heading, methods in suite.grouped:
        table.add_row(Text(one_line(heading), style="dim"))
        for method in methods:
            name = Text(f"  {one_line(method.label)}")
            if method.trouble:
                name.append(f" ({one_line(method.standing(len(suite.seeds)))})", style="yellow")
            gain = chance = ""
            if method is not baseline and method.gain is not None:
                gain = numbers.score(method.gain, method.gain_interval, "+")
            if method is not baseline and method.probability_of_improvement is not None:
                chance = f"{method.probability_of_improvement:.2f}"
            paid = _NONE if method.rollouts is None else f"{method.rollouts:,.0f}"
            table.add_row(
                name,
                numbers.score(method.score, method.interval),
                gain,
                chance,
                numbers.score(method.plain),
                f"{method.compute} {paid}",
            )
    if troubles := _troubles(suite):
        table.caption = Text("\n".join(troubles), style="yellow")
        table.caption_justify = "left"
    return table


def _troubles(suite: SuiteSummary) -> list[str]:
    """Return what a reader must know first: missing runs, and unequal compute."""
    missing = [suite.missing] if suite.missing else []
    others = [
        f"{method.label} ({method.trouble}): {method.problem}"
        for method in suite.methods
        if method.trouble and (not method.missing or method.status == "unequal")
    ]
    return [one_line(text) for text in [*missing, *others]]


def _by_stratum(suite: SuiteSummary) -> Table:
    """Return mean scores before and after training, also by stratum; with a focus, only its strata."""
    focus = suite.focus or ""
    strata = [name for name in suite.stratum_names if name.startswith(focus)]
    columns = ["all", *([f"{focus}…"] if focus else []), *(s.removeprefix(focus) for s in strata)]
    title = f"Held-out {suite.measure}; plain: under the initial instruction"
    table = _table(title, columns)
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
    table = _table(f"Weights and instruction: {suite.what}", columns)
    for method in filter(lambda method: method.quadrants, suite.ordered):
        table.add_row(Text(one_line(method.label)))
        for decoding, name in (("greedy", "  greedy"), ("sampled", f"  {average}")):
            spreads = [method.quadrants[quadrant][decoding] for quadrant in QUADRANTS]
            kl = method.divergence.get("prompted") if decoding == "sampled" else None
            cells = [numbers.score(spread.mean, spread.interval) for spread in spreads]
            table.add_row(name, *cells, f"{kl.mean:.2g}" if kl else "")
    return table


def _cost(suite: SuiteSummary) -> Table:
    """Return the cost of one run of each method, as means over its seeds."""
    money = any(method.money for method in suite.methods)
    seeds = ", mean over seeds" if len(suite.seeds) > 1 else ""
    columns = [*suite.purposes, "evaluation", "generated tokens", "LLM calls"]
    columns += [*(["US dollars"] if money else []), "seconds"]
    table = _table(f"Cost{seeds}", columns)
    for method in filter(lambda method: method.finished, suite.ordered):
        counts = [method.rollouts_by_purpose.get(name, 0) for name in suite.purposes]
        counts += [method.evaluation_rollouts, method.generated_tokens, method.llm_calls]
        cells = [_NONE if count is None else f"{count:,.0f}" for count in counts]
        cells += [f"{method.money or 0:.2f}"] * money
        table.add_row(Text(one_line(method.label)), *cells, f"{method.seconds or 0:,.0f}")
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    """Return a table without a frame: a column of names, then numbers."""
    headings = [Text(one_line(column), overflow="fold") for column in columns]
    return plain_table(Text(one_line(title)), [""], headings)


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
