"""The report of a run: result, cost, curves, instructions, rollouts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from cotune.experiments.report.charts import Chart, Series, curves_chart, line_chart, style
from cotune.experiments.report.hints import hints_of, outside_phases
from cotune.experiments.report.instructions import population
from cotune.experiments.report.pages import (
    NONE,
    count,
    duration,
    label,
    moment,
    money,
    number,
    percent,
    write_page,
)
from cotune.experiments.report.quadrants import quadrant_table
from cotune.experiments.report.recorded_run import RecordedRun, read_run, values
from cotune.run.journal import NOTICES, describe_event
from cotune.run.json_files import Row
from cotune.run.scores import wilson
from cotune.run.truncation import SHARE, truncation_notice
from cotune.utils.text import command_on

_PURPOSES = ("train", "verify", "evolve")


def write_run_report(folder: Path) -> Path:
    """Write report.html into a run folder; see `write_report`."""
    run = read_run(folder)
    charts = [chart for chart in training_charts(run) if chart]
    content = {
        "name": run.config.get("name") or folder.resolve().name,
        "resume": command_on(folder, "resume"),
        "run": run,
        "facts": _facts(run),
        "verdict": _verdict(run),
        "results": results(run),
        "quadrants": quadrant_table(run, folder),
        "costs": costs(run),
        "shipped": _shipped(run),
        "kept": run.kept.statement() if run.kept else "",
        "charts": charts,
        "more": [chart for chart in _more_charts(run) if chart],
        "population": population(run, outside_phases(run.events, "proposal_failed")),
        "hints": hints_of(run),
        "notices": [*_notices(run), *_truncated(run)],
        "resumes": _resumed(run),
    }
    content["contents"] = (
        ("result", "Result", True),
        ("cost", "Cost", content["costs"]),
        ("training", "Training", charts),
        ("instructions", "Instructions", content["population"]),
        ("hints", "Hints", content["hints"]),
        ("trajectories", "Trajectories", run.groups or run.shown),
        ("notices", "Notices", content["notices"] or content["resumes"]),
    )
    return write_page(folder, "report.html.j2", ["report.css"], run.shares, content)


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what the header says was run: method, model, seed, length and time."""
    said = {key: label(value) for key, value in run.summary.items()}
    given = {key: label(value) for key, value in run.config.items()}
    times = [row["time"] for row in (*run.events, *run.metrics)]
    facts = [
        ("Method", said.get("baseline") or given.get("strategy")),
        ("Environment", given.get("environment")),
        ("Model", said.get("model") or given.get("policy")),
        ("Proposer", said.get("llm")),
        ("Seed", given.get("seed")),
        ("Steps", str(run.steps or "")),
        (
            "When",
            f"{moment(min(times))}, over {duration(max(times) - min(times))}" if times else "",
        ),
    ]
    return [(name, value) for name, value in facts if value]


# Evaluations that do not use the best instruction of their time, or not the best policy.
_OTHER_PROMPTS = ("plain", "uplift", "hinted", "last")


def _verdict(run: RecordedRun) -> str:
    """Return one sentence on the outcome."""
    before, after = run.result.get("em_before"), run.result.get("em")
    evaluated = [
        event
        for event in run.of_kind("evaluated")
        if event.get("em") is not None and event.get("when") not in (*_OTHER_PROMPTS, "contender")
    ]
    score, what = percent if run.shares else number, f"Held-out {run.measure}"
    if after is not None and before is not None:
        if after == before:
            return f"{what} stayed at {score(after)}."
        verb = "rose" if after > before else "fell"
        return f"{what} {verb} from {score(before)} to {score(after)}."
    if after is not None:
        return f"{what} is {score(after)}."
    if evaluated:
        last = evaluated[-1]
        when = (
            "before training"
            if last.get("when") == "before"
            else f"at step {last.get('trained', last['step'])}"
        )
        return f"{what} was {score(last['em'])} {when}."
    return "No held-out result yet."


@dataclass(frozen=True, slots=True)
class Cell:
    """Scores before and after, the 95 % interval of the latter, and the number of questions."""

    before: float | None
    after: float | None
    interval: Sequence[float] | None
    n: int | None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def results(run: RecordedRun) -> dict[str, Cell]:
    """Return the scores by stratum, "" for all questions; {} if there are none."""

    def cell(before: object, after: object, n: int | None) -> Cell:
        ends = (_stratum_score(before), _stratum_score(after))
        share = ends[1] if run.shares else None
        return Cell(*ends, wilson(share, n) if share is not None and n else None, n)

    result, (n, by_stratum) = run.result, _sample_sizes(run)
    overall = cell(result.get("em_before"), result.get("em"), n)
    stored = result.get("em_interval")
    cells = {"": Cell(overall.before, overall.after, stored or overall.interval, n)}
    before = result.get("em_before_by_stratum") or {}
    after = result.get("em_by_stratum") or {}
    for name in sorted({*after, *before} - {""}):
        cells[name] = cell(before.get(name), after.get(name), by_stratum.get(name))
    scored = any((c.after, c.before) != (None, None) for c in cells.values())
    return cells if scored else {}


def _stratum_score(value: object) -> float | None:
    """Return a score that is stored alone or as [score, n]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return float(value) if isinstance(value, (int, float)) else None


def _sample_sizes(run: RecordedRun) -> tuple[int | None, dict[str, int]]:
    """Return how many questions the last evaluation had: overall and by stratum."""
    evaluated = run.of_kind("evaluated")
    if not evaluated:
        return None, {}
    final = next((e for e in reversed(evaluated) if e.get("when") == "after"), evaluated[-1])
    pairs = (final.get("by_stratum") or {}).items()
    return final.get("n"), {name: v[1] for name, v in pairs if isinstance(v, list) and len(v) > 1}


def costs(run: RecordedRun) -> list[tuple[str, str, str]]:
    """Return the rows of the cost table: CSS class, what is counted, and its value.

    Evaluation is counted separately: no method pays for it.
    """
    by_purpose = run.result.get("policy_rollouts") or {}
    spent = {name: n for name, n in by_purpose.items() if name != "evaluate"}
    total = sum(spent.values()) if spent else None
    used = [name for name in (*_PURPOSES, *sorted(spent.keys() - {*_PURPOSES})) if spent.get(name)]
    rows = [("", "Policy rollouts", count(total))]
    rows += [("part", name, count(spent[name])) for name in used]
    if "verify" in used or "evolve" not in used:
        share = percent(spent.get("verify", 0) / total) if total else NONE
        rows.append(("", "Verification, share of all rollouts", share))
    if "evolve" in used and total:
        rows.append(("", "Evolution, share of all rollouts", percent(spent["evolve"] / total)))
    rows += [
        ("", "Rollouts of evaluations, not counted above", count(by_purpose.get("evaluate"))),
        ("", "Generated tokens", count(run.result.get("generated_tokens"))),
        ("", "LLM calls", count(run.result.get("llm_calls"))),
        ("part", "waited for", _sum_of_steps(run, "llm/waited_seconds")),
        ("", "Phases without a useful proposal", count(run.result.get("failed_phases") or None)),
        ("", "Money", money(run.result.get("money"))),
        ("", "Time", duration(run.result.get("seconds"))),
    ]
    return [row for row in rows if row[2] != NONE]


def _sum_of_steps(run: RecordedRun, key: str) -> str:
    """Return the sum over steps of a metric in seconds."""
    found = [value for _, value in run.values(key)]
    return duration(sum(found)) if found else NONE


def _shipped(run: RecordedRun) -> Row | None:
    """Return the instruction to ship: the kept one, the summary's, else the last evaluated."""
    best = run.kept.instruction if run.kept else run.summary.get("best_instruction")
    wanted = best or run.best
    for row in reversed(run.instructions):
        if wanted and wanted in (row["id"], row["text"]):
            return row
    return {"id": "", "born": None, "origin": "", "text": best} if best else None


def _resumed(run: RecordedRun) -> list[tuple[Row, list[tuple[str, str]]]]:
    """Return each resume, with the fields of the run file that changed and how.

    Fields that may hold a key are only named: events do not contain their values.
    """

    def changed(pair: Any) -> str:
        if pair is None:
            return "another value, which is not recorded"
        return " → ".join(json.dumps(value, ensure_ascii=False) for value in pair)

    return [
        (event, [(name, changed(pair)) for name, pair in event["changed"].items()])
        for event in run.of_kind("resumed")
    ]


def _notices(run: RecordedRun) -> list[Row]:
    """Return the events that are notices; a notice without a text of its own gets the console's."""
    return [
        {"text": Text.from_markup(describe_event(event["kind"], event)).plain, **event}
        for event in run.events
        if event["kind"] in NOTICES
    ]


def _truncated(run: RecordedRun) -> list[Row]:
    """Return the first notice that more than half of a step's rollouts were truncated."""
    notices = ({"step": row["step"], "text": truncation_notice(row)} for row in run.metrics)
    return [notice for notice in notices if notice["text"]][:1]


def training_charts(run: RecordedRun) -> list[Chart | None]:
    """Draw reward, held-out score, behaviour and zero-advantage share over the steps."""
    without = "Share of groups without advantage"
    return [
        _reward_chart(run),
        _held_out_chart(run),
        *behaviour_charts(run),
        _curve(run, without, "zero_advantage_share", shares=True),
        _curve(run, "Share of rollouts that were truncated", SHARE, shares=True)
        if any(share for _, share in run.values(SHARE))
        else None,
    ]


def _more_charts(run: RecordedRun) -> list[Chart | None]:
    return [
        _curve(run, "Loss", "loss"),
        _curve(run, "Entropy of the policy (nats per token)", "entropy"),
        _curve(run, "Gradient norm", "grad_norm"),
    ]


def _curve(run: RecordedRun, title: str, key: str, shares: bool = False) -> Chart | None:
    return curves_chart(title, [(run.name, run.values(key))], "share" if shares else "number")


def _reward_chart(run: RecordedRun) -> Chart | None:
    """Draw the training reward of each step; as per cent if it is the share of exact matches."""
    before = "resample/reward_mean_before"
    if any(before in row for row in run.metrics):
        title = "Training reward per step, before groups were replaced"
        return _curve(run, title, before, shares=run.shares)
    return _curve(run, "Training reward per step", "reward_mean", shares=run.shares)


def _held_out_chart(run: RecordedRun) -> Chart | None:
    """Draw held-out scores over training, one series per split.

    From the initial instruction before training to the best one of its time; the trained policy
    under the initial instruction is in the table, not here. At the end, validation chooses between
    contenders, so the best score of a step counts.
    """
    by_split: dict[str, list[Row]] = {}
    for event in run.of_kind("evaluated"):
        if event.get("when") not in _OTHER_PROMPTS:
            row = {**event, "step": event.get("trained", event["step"])}
            by_split.setdefault(str(event.get("split", "")), []).append(row)
    for rows in by_split.values():
        rows.sort(key=lambda row: row.get("em") or 0.0)
    drawn = [(split, values(rows, "em")) for split, rows in sorted(by_split.items())]
    drawn = [(split if len(drawn) > 1 else run.name, points) for split, points in drawn]
    named = [(name, points) for name, points in drawn if points]
    if not any(x > 0 for _, points in named for x, _ in points):
        return None  # nothing was trained: before and after would coincide
    series = [Series(name, points, style(i), dots=True) for i, (name, points) in enumerate(named)]
    unit = "share" if run.shares else "number"
    return line_chart(f"Held-out {run.measure}", series, unit=unit, legend=len(series) > 1)


_ACTIONS = "actions/"
_NO_TOOL = frozenset({"answer", "invalid"})
_MOST_KINDS = 7


def behaviour_charts(run: RecordedRun) -> list[Chart]:
    """Draw tool calls, response and prompt length (INSPO Fig. 2), as far as they were recorded."""
    prompt = _curve(run, "Prompt length in tokens", "prompt_tokens_mean")
    return [chart for chart in (_calls_chart(run), _response_chart(run), prompt) if chart]


def _calls_chart(run: RecordedRun) -> Chart | None:
    """Draw turns that call a tool: the tools called most, and turns that could not be used."""
    rows = [row for row in run.metrics if any(key.startswith(_ACTIONS) for key in row)]
    keys = sorted({key for row in rows for key in row if key.startswith(_ACTIONS)})
    # 0 at steps that took other actions only
    calls = {
        key.removeprefix(_ACTIONS): values([{**row, key: row.get(key, 0.0)} for row in rows], key)
        for key in keys
    }
    if tools := set(calls) - _NO_TOOL:
        most = sorted(sorted(tools), key=lambda kind: -sum(y for _, y in calls[kind]))
        curves = [(kind, calls[kind]) for kind in most[:_MOST_KINDS]]
        curves += [("unusable turns", calls[kind]) for kind in ("invalid",) if kind in calls]
        return curves_chart("Turns per rollout, by action", curves)
    if any(y > 1 for _, y in run.values("turns_mean")):
        return _curve(run, "Turns per rollout", "turns_mean")
    return None


def _response_chart(run: RecordedRun) -> Chart | None:
    own, all_tokens = run.values("response_tokens_mean"), run.values("completion_tokens_mean")
    curves = [("written by the policy", own)]
    if any(a[1] > b[1] * 1.05 for a, b in zip(all_tokens, own, strict=False)):
        curves.append(("with observations", all_tokens))
    return curves_chart("Response length in tokens", curves)
