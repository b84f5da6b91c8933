"""The report of a run: result, cost, curves, instructions, hints, rollouts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from cotune.experiments.evaluate.quadrant_table import quadrant_table
from cotune.experiments.report.charts import Chart, Point, Series, curves_chart, line_chart, style
from cotune.experiments.report.hints import hints_of, outside_phases
from cotune.experiments.report.instructions import population
from cotune.experiments.report.pages import label, moment, write_page
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.experiments.report.rollouts import MOST_TURNS, some_evaluated, some_groups
from cotune.run.events import EVENTS, describe_event
from cotune.run.json_files import Row
from cotune.run.scores import wilson
from cotune.run.truncation import SHARE, truncation_notice
from cotune.utils.tables import NONE, Cell, Table, count, duration, money, percent
from cotune.utils.text import command_on

_PURPOSES = ("train", "verify", "evolve")
# Evaluations that do not use the best instruction of their time, or not the best policy.
_OTHER_PROMPTS = ("plain", "uplift", "hinted", "last")
_SCORES = {
    "em_before": "before training, initial instruction",
    "em_initial_instruction": "trained, initial instruction",
    "em": "trained, best instruction",
}
_CURVES = (
    ("Prompt length in tokens", "prompt_tokens_mean"),
    ("Share of groups without advantage", "zero_advantage_share"),
    ("Share of rollouts that were truncated", SHARE),
)
_MORE_CURVES = (
    ("Loss", "loss"),
    ("Entropy of the policy (nats per token)", "entropy"),
    ("Gradient norm", "grad_norm"),
)


def write_run_report(folder: Path) -> Path:
    """Write report.html into a run folder; see `write_report`."""
    run = RecordedRun(folder)
    evaluated, evaluated_from = some_evaluated(run.folder)
    content: dict[str, Any] = {
        "title": run.config.get("name") or folder.resolve().name,
        "resume": command_on(folder, "resume"),
        "measure_quadrants": command_on(folder, "evaluate", "--quadrants"),
        "run": run,
        "facts": _facts(run),
        "verdict": _verdict(run),
        "tables": [*([quadrant_table(run.quadrants)] if run.quadrants else []), *results(run)],
        "costs": costs(run),
        "shipped": _shipped(run),
        "kept": run.kept.statement() if run.kept else "",
        "charts": training_charts(run),
        "more": _charts(run, _MORE_CURVES),
        "population": population(run, outside_phases(run.events, "proposal_failed")),
        "hints": hints_of(run),
        "groups": some_groups(run.folder),
        "evaluated": evaluated,
        "evaluated_from": evaluated_from,
        "most_turns": MOST_TURNS,
        "notices": _notices(run),
    }
    return write_page(folder, "run.html.j2", content)


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what the header says was run: method, model, seed, length and time."""
    named = {key: label(value) for key, value in run.summary.items()}
    configured = {key: label(value) for key, value in run.config.items()}
    times = [row["time"] for row in (*run.events, *run.metrics)]
    facts = [
        ("Method", configured.get("strategy")),
        ("Environment", configured.get("environment")),
        ("Model", configured.get("policy")),
        ("Proposer", named.get("llm")),
        ("Seed", configured.get("seed")),
        ("Steps", str(run.steps or "")),
        (
            "When",
            f"{moment(min(times))}, over {duration(max(times) - min(times))}" if times else "",
        ),
    ]
    return [(name, value) for name, value in facts if value]


def _verdict(run: RecordedRun) -> str:
    """Return one sentence on the outcome."""
    before, after = run.result.get("em_before"), run.result.get("em")
    score, what = run.scores.score, f"Held-out {run.measure}"
    if after is not None and before is not None:
        if after == before:
            return f"{what} stayed at {score(after)}."
        return (
            f"{what} {'rose' if after > before else 'fell'} from {score(before)} to {score(after)}."
        )
    if after is not None:
        return f"{what} is {score(after)}."
    for event in reversed(run.of_kind("evaluated")):
        when = event.get("when")
        if event.get("em") is not None and when not in (*_OTHER_PROMPTS, "contender"):
            step = f"at step {event.get('trained', event['step'])}"
            return f"{what} was {score(event['em'])} {'before training' if when == 'before' else step}."
    return "No held-out result yet."


def results(run: RecordedRun) -> list[Table]:
    """Return the table of scores by stratum, before and after training; [] if there are none."""
    evaluated = run.of_kind("evaluated")
    final = [event for event in evaluated if event.get("when") == "after"] or evaluated or [{}]
    by_stratum = (final[-1].get("by_stratum") or {}).items()
    sizes = {n: v[1] for n, v in by_stratum if isinstance(v, list) and len(v) > 1}
    sizes |= {"": final[-1].get("n")}
    scores: dict[str, dict[str, float | None]] = {}
    for key in _SCORES:
        cells = {"": run.result.get(key), **(run.result.get(f"{key}_by_stratum") or {})}
        scores[key] = {name: _score(value) for name, value in cells.items()}
        if not any(value is not None for value in scores[key].values()):
            del scores[key]
    if not scores:
        return []
    names = sorted({name for row in scores.values() for name in row})  # "", all questions, first

    def cell(key: str, name: str) -> Cell:
        score, n = scores[key].get(name), sizes.get(name)
        interval = wilson(score, n) if run.scores.shares and score is not None and n else None
        stored = run.result.get("em_interval") if (key, name) == ("em", "") else None
        return run.scores.cell(score, stored or interval)

    def change(name: str) -> Cell:
        before = scores["em_before"].get(name)
        after = scores["em"].get(name)
        if before is None or after is None:
            return Cell()
        gain = after - before
        text = run.scores.cell(gain, change=True).text
        return Cell(text, css="up" if gain > 0 else "down" if gain < 0 else "")

    rows = [[Cell(_SCORES[key]), *(cell(key, name) for name in names)] for key in scores]
    if {"em", "em_before"} <= scores.keys():
        points = ", in percentage points" if run.scores.shares else ""
        rows.append([Cell(f"change{points}"), *map(change, names)])
    heads = [
        Cell(n or "Overall", f"n\u00a0=\u00a0{count(sizes[n])}" if sizes.get(n) else "")
        for n in names
    ]
    notes = "Small: 95 % intervals over questions, which do not cover seeds."
    if not run.finished:
        notes = f"Training has not finished. {notes}"
    return [Table([Cell(f"Held-out {run.measure}"), *heads], rows, notes)]


def _score(value: object) -> float | None:
    """Return a score that is stored alone or as [score, n]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return float(value) if isinstance(value, (int, float)) else None


def costs(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what is counted, and its value. Evaluation is counted apart: no method pays for it."""
    by_purpose = run.result.get("policy_rollouts") or {}
    spent = {name: n for name, n in by_purpose.items() if name != "evaluate"}
    total = sum(spent.values()) if spent else None
    used = [name for name in (*_PURPOSES, *sorted(spent.keys() - {*_PURPOSES})) if spent.get(name)]
    rows = [("Policy rollouts", count(total))]
    rows += [(f"· {name}", count(spent[name])) for name in used]
    if total:
        if "verify" in used or "evolve" not in used:
            share = percent(spent.get("verify", 0) / total)
            rows.append(("Verification, share of all rollouts", share))
        if "evolve" in used:
            rows.append(("Evolution, share of all rollouts", percent(spent["evolve"] / total)))
    waited = run.values("llm/waited_seconds")
    rows += [
        ("Rollouts of evaluations, not counted above", count(by_purpose.get("evaluate"))),
        ("Generated tokens", count(run.result.get("generated_tokens"))),
        ("LLM calls", count(run.result.get("llm_calls"))),
        ("· waited for", duration(sum(y for _, y in waited) if waited else None)),
        ("Phases without a useful proposal", count(run.result.get("failed_phases") or None)),
        ("Money", money(run.result.get("money"))),
        ("Time", duration(run.result.get("seconds"))),
    ]
    return [row for row in rows if row[1] != NONE]


def _shipped(run: RecordedRun) -> tuple[str, str] | None:
    """Return the heading and the text of the instruction to ship."""
    for row in run.instructions:
        if row.best:
            born = f"born at step {row.born}" if row.born else "present from the start"
            origin = f" ({row.origin})" if row.origin else ""
            return f"Best instruction: {row.id}, {born}{origin}", row.text
    text = run.kept.instruction if run.kept else run.summary.get("best_instruction")
    return ("Best instruction", text) if text else None


def _notices(run: RecordedRun) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return resumes with the fields of the run file that changed and how, then all notices.

    Fields that may hold a key are only named: events do not contain their values.
    """

    def changed(pair: Any) -> str:
        if pair is None:
            return "another value, which is not recorded"
        return " → ".join(json.dumps(value, ensure_ascii=False) for value in pair)

    lines: list[tuple[str, list[tuple[str, str]]]] = []
    for event in run.of_kind("resumed"):
        fields = [(name, changed(pair)) for name, pair in event["changed"].items()]
        told = f"resumed from step {event['from_step']} (attempt {event['attempt']})"
        lines.append((f"{told}, with another run file:" if fields else told, fields))
    for event in run.events:
        kind = EVENTS.get(event["kind"])
        if kind is not None and kind.notable:
            # A notice without a text of its own gets the console's.
            text = event.get("text") or Text.from_markup(describe_event(event["kind"], event)).plain
            lines.append((f"step {event['step']}: {text}", []))
    truncated = ((row["step"], truncation_notice(row)) for row in run.metrics)
    lines += [(f"step {step}: {text}", []) for step, text in truncated if text][:1]
    return lines


def training_charts(run: RecordedRun) -> list[Chart]:
    """Draw reward, held-out score, behaviour (INSPO Fig. 2) and zero-advantage share over the steps."""
    reward = [(run.name, run.values("reward_mean"))]
    charts = (
        curves_chart("Training reward per step", reward, share=run.scores.shares),
        _held_out_chart(run),
        _calls_chart(run),
        _response_chart(run),
    )
    return [chart for chart in charts if chart] + _charts(run, _CURVES)


def _charts(run: RecordedRun, curves: Sequence[tuple[str, str]]) -> list[Chart]:
    """Draw the metrics that were recorded, by title and name."""
    charts = (
        curves_chart(title, [(run.name, run.values(key))], share=title.startswith("Share"))
        for title, key in curves
    )
    return [chart for chart in charts if chart]


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
    curves = [(split, values(rows, "em")) for split, rows in sorted(by_split.items())]
    curves = [(split, points) for split, points in curves if points]
    if not any(x > 0 for _, points in curves for x, _ in points):
        return None  # nothing was trained: before and after would coincide
    series = [Series(split, points, style(i)) for i, (split, points) in enumerate(curves)]
    return line_chart(f"Held-out {run.measure}", series, share=run.scores.shares)


def _calls_chart(run: RecordedRun) -> Chart | None:
    """Draw turns that call a tool: the tools called most, and turns that could not be used."""
    prefix, others = "actions/", ("answer", "invalid")
    rows = [row for row in run.metrics if any(key.startswith(prefix) for key in row)]
    kinds = {key.removeprefix(prefix) for row in rows for key in row if key.startswith(prefix)}
    calls: dict[str, list[Point]] = {
        # 0 at steps that took other actions only
        kind: values([{prefix + kind: 0.0, **row} for row in rows], prefix + kind)
        for kind in sorted(kinds)
    }
    if tools := [kind for kind in calls if kind not in others]:
        most = sorted(tools, key=lambda kind: -sum(y for _, y in calls[kind]))[:7]
        curves = [(kind, calls[kind]) for kind in most]
        curves += [("unusable turns", calls[kind]) for kind in others[1:] if kind in calls]
        return curves_chart("Turns per rollout, by action", curves)
    if any(y > 1 for _, y in run.values("turns_mean")):
        return curves_chart("Turns per rollout", [(run.name, run.values("turns_mean"))])
    return None


def _response_chart(run: RecordedRun) -> Chart | None:
    written, all_tokens = run.values("response_tokens_mean"), run.values("completion_tokens_mean")
    curves = [("written by the policy", written)]
    if any(a[1] > b[1] * 1.05 for a, b in zip(all_tokens, written, strict=False)):
        curves.append(("with observations", all_tokens))
    return curves_chart("Response length in tokens", curves)
