"""A run's or a comparison's report: one HTML file without scripts, readable from disk."""

from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotune.experiments.compare.suite_summary import is_suite_folder
from cotune.experiments.report import behaviour, figures, hint_figures, tables
from cotune.experiments.report.formats import (
    count,
    duration,
    label,
    money,
    number,
    number_range,
    percent,
    points,
    readable,
    share_range,
    signed,
)
from cotune.experiments.report.hints import hints_of
from cotune.experiments.report.reading import Source, read_source
from cotune.run.json_files import write_atomic
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH

__all__ = ["count", "duration", "money", "number", "percent", "points", "write_report"]


def write_report(folder: RunDir | Path | str) -> Path:
    """Writes report.html into a run folder or a comparison's folder, from its files only.

    A comparison's folder has a summary.json whose arms name their folders, or the arms' run folders
    as its subfolders. A run without a summary is reported as far as it came.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: `folder` holds no run, or one of its files cannot be read.
    """
    path = folder.path if isinstance(folder, RunDir) else Path(folder)
    if is_suite_folder(path):
        from cotune.experiments.report.suite import write_suite_report

        return write_suite_report(path)
    html = _render(read_source(path))
    report = path / "report.html"
    write_atomic(report, readable(html).encode(errors="replace"))
    return report


def page_environment() -> Environment:
    """Templates of this package: everything is escaped, an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (percent, points, count, money, duration, number):
        environment.filters[function.__name__] = function
    environment.filters["solved_strip"] = hint_figures.solved_strip
    return environment


def page_style() -> Markup:
    """The style sheet: ours, not a model's."""
    sheet = files(__package__ or __name__).joinpath("report.css")
    return Markup(sheet.read_text(encoding="utf-8"))


def _render(source: Source) -> str:
    environment = page_environment()
    summary, arms = source.summary or {}, source.arms
    measure = figures.common_measure(arms)
    shares = measure == EXACT_MATCH
    environment.filters["score"] = percent if shares else number
    environment.filters["change"] = points if shares else signed
    environment.filters["interval"] = share_range if shares else number_range
    charts = (
        figures.reward_chart(arms),
        figures.held_out_chart(arms),
        *behaviour.behaviour_charts(arms),
        figures.zero_advantage_chart(arms),
    )
    populations = [found for found in map(tables.population, arms) if found]
    hinted = [found for found in map(hints_of, arms) if found]
    charts = [chart for chart in charts if chart]
    notices = [(arm, event) for arm in arms for event in arm.of_kind("notice")]
    resumes = [(arm, *resume) for arm in arms for resume in tables.resumed(arm)]
    contents = (
        ("result", "Result", True),
        ("cost", "Cost", bool(costs := tables.costs(arms))),
        ("training", "Training", bool(charts)),
        ("instructions", "Instructions", bool(populations)),
        ("hints", "Hints", bool(hinted)),
        ("trajectories", "Trajectories", any(arm.groups or arm.shown for arm in arms)),
        ("notices", "Notices", bool(notices or resumes)),
    )
    return environment.get_template("report.html.j2").render(
        style=page_style(),
        name=summary.get("name")
        or label(arms[0].config.get("name"))
        or source.folder.resolve().name,
        folder=source.folder,
        facts=tables.facts(summary, arms),
        verdict=summary.get("verdict") or tables.verdict(arms),
        caption=summary.get("caption") or "",
        unfinished=[arm for arm in arms if not arm.finished],
        arms=arms,
        measure=measure,
        shares=shares,
        colours=[figures.style(i) for i in range(len(arms))],
        results=tables.results(arms),
        costs=costs,
        shipped=tables.shipped(summary, arms),
        charts=charts,
        more=figures.more_charts(arms),
        populations=populations,
        hinted=hinted,
        notices=notices,
        resumes=resumes,
        contents=contents,
    )
