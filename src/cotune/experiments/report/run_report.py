"""The report of a run, or of several runs compared: results, cost, curves, instructions, rollouts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune.experiments.report.arms import Arm, read_arms, values
from cotune.experiments.report.charts import Chart, Point, Series, curves_chart, line_chart, style
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
from cotune.run.json_files import Row
from cotune.run.scores import EXACT_MATCH, MEAN_REWARD, wilson

_HARD = "Hard strata"
_PURPOSES = ("train", "verify", "evolve")


def write_run_report(folder: Path) -> Path:
    """Write report.html into a run folder or a folder of runs; see `write_report`."""
    summary, arms = read_arms(folder)
    summary = summary or {}
    measure = common_measure(arms)
    charts = [chart for chart in training_charts(arms) if chart]
    populations = [population(arm, outside_phases(arm.events, "proposal_failed")) for arm in arms]
    hinted = [found for found in map(hints_of, arms) if found]
    notices = [(arm, event) for arm in arms for event in arm.of_kind("notice")]
    resumes = [(arm, *resume) for arm in arms for resume in _resumed(arm)]
    content = {
        "name": summary.get("name") or label(arms[0].config.get("name")) or folder.resolve().name,
        "folder": folder,
        "facts": _facts(summary, arms),
        "verdict": summary.get("verdict") or _verdict(arms),
        "caption": summary.get("caption") or "",
        "unfinished": [arm for arm in arms if not arm.finished],
        "arms": arms,
        "measure": measure,
        "shares": measure == EXACT_MATCH,
        "colours": [style(i) for i in range(len(arms))],
        "results": results(arms),
        "costs": costs(arms),
        "shipped": _shipped(summary, arms),
        "charts": charts,
        "more": [chart for chart in _more_charts(arms) if chart],
        "populations": [found for found in populations if found],
        "hinted": hinted,
        "notices": notices,
        "resumes": resumes,
    }
    content["contents"] = (
        ("result", "Result", True),
        ("cost", "Cost", content["costs"]),
        ("training", "Training", charts),
        ("instructions", "Instructions", content["populations"]),
        ("hints", "Hints", hinted),
        ("trajectories", "Trajectories", any(arm.groups or arm.shown for arm in arms)),
        ("notices", "Notices", notices or resumes),
    )
    return write_page(folder, "report.html.j2", ["report.css"], measure == EXACT_MATCH, content)


def common_measure(arms: Sequence[Arm]) -> str:
    """Return what the arms' scores are of; if they differ, it is the mean reward."""
    measures = {arm.measure for arm in arms}
    return measures.pop() if len(measures) == 1 else MEAN_REWARD


def _facts(summary: Row, arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """Return what the header says was run: method, model, seed, length and time."""

    def each(key: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, (label(a.config.get(key)) for a in arms))))

    def said(key: str) -> str:
        return label(summary.get(key))

    times = [row["time"] for arm in arms for row in (*arm.events, *arm.metrics)]
    when = f"{moment(min(times))}, over {duration(max(times) - min(times))}" if times else ""
    facts = [
        ("Method", said("baseline") or each("strategy") or said("strategy")),
        ("Environment", each("environment")),
        ("Model", said("model") or each("model") or each("policy")),
        ("LLM", said("llm")),
        ("Seed", each("seed") or said("seed")),
        ("Steps", ", ".join(dict.fromkeys(str(arm.steps) for arm in arms if arm.steps))),
        ("When", when),
    ]
    return [(name, value) for name, value in facts if value]


def _verdict(arms: Sequence[Arm]) -> str:
    """Return one sentence on the outcome, for a summary without one."""
    clauses: list[str] = []
    for arm in arms:
        before, after = arm.result.get("em_before"), arm.result.get("em")
        evaluated = [event for event in arm.of_kind("evaluated") if event.get("em") is not None]
        score = percent if arm.measure == EXACT_MATCH else number
        what = f"{f'{arm.name}: ' if len(arms) > 1 else ''}held-out {arm.measure}"
        if after is not None and before is not None:
            verb = "rose" if after > before else "fell" if after < before else "went"
            clauses.append(f"{what} {verb} from {score(before)} to {score(after)}")
        elif after is not None:
            clauses.append(f"{what} is {score(after)}")
        elif evaluated:
            last = evaluated[-1]
            when = "before training" if last.get("when") == "before" else f"at step {last['step']}"
            clauses.append(f"{what} was {score(last['em'])} {when}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else "No held-out result yet."


@dataclass(frozen=True, slots=True)
class Cell:
    """Scores before and after, and the 95 % interval of the latter."""

    before: float | None
    after: float | None
    interval: tuple[float, float] | None = None

    @property
    def change(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before


def results(arms: Sequence[Arm]) -> dict[str, Any]:
    """Return the main table: its columns ("" is overall) with sizes, and a row of cells per arm."""
    sizes: dict[str, int | None] = {"": None}
    rows: list[tuple[Arm, dict[str, Cell]]] = []
    for arm in arms:
        result, shares = arm.result, arm.measure == EXACT_MATCH
        n, by_stratum = _sample_sizes(arm)
        sizes[""] = n or sizes[""]
        overall = _cell(result.get("em_before"), result.get("em"), n, shares)
        if (stored := result.get("em_interval")) is not None:
            overall = Cell(overall.before, overall.after, stored)
        cells = {"": overall}
        hard = result.get("accuracy_hard_before"), result.get("accuracy_hard")
        if hard != (None, None):
            sizes[_HARD] = result.get("accuracy_hard_n")
            cells[_HARD] = _cell(*hard, sizes[_HARD], True)
        before = result.get("em_before_by_stratum") or {}
        after = result.get("em_by_stratum") or {}
        for name in sorted({*after, *before} - {""}):
            sizes[name] = by_stratum.get(name, sizes.get(name))
            ends = _stratum_score(before.get(name)), _stratum_score(after.get(name))
            cells[name] = _cell(*ends, by_stratum.get(name), shares)
        rows.append((arm, cells))
    scored = any((c.after, c.before) != (None, None) for _, row in rows for c in row.values())
    return {"sizes": sizes, "rows": rows if scored else [], "none": Cell(None, None)}


def _cell(before: float | None, after: float | None, n: int | None, shares: bool) -> Cell:
    return Cell(before, after, wilson(after, n) if shares and after is not None and n else None)


def _stratum_score(value: object) -> float | None:
    """Return the score of a stratum that is stored as a score or as [score, n]."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    return float(value) if isinstance(value, (int, float)) else None


def _sample_sizes(arm: Arm) -> tuple[int | None, dict[str, int]]:
    """Return how many questions the last evaluation had: overall and by stratum."""
    evaluated = arm.of_kind("evaluated")
    if not evaluated:
        return None, {}
    final = next((e for e in reversed(evaluated) if e.get("when") == "after"), evaluated[-1])
    pairs = (final.get("by_stratum") or {}).items()
    return final.get("n"), {name: v[1] for name, v in pairs if isinstance(v, list) and len(v) > 1}


def costs(arms: Sequence[Arm]) -> list[tuple[str, str, list[str]]]:
    """Return the rows of the cost table: CSS class, what is counted, and a value per arm.

    Evaluation is counted separately: no method pays for it.
    """
    by_purpose = [arm.result.get("policy_rollouts") or {} for arm in arms]
    spent = [{k: v for k, v in row.items() if k != "evaluate"} for row in by_purpose]
    others = sorted({purpose for row in spent for purpose in row} - set(_PURPOSES))
    totals = [sum(row.values()) if row else None for row in spent]
    used = [purpose for purpose in (*_PURPOSES, *others) if any(row.get(purpose) for row in spent)]
    rows = [("", "Policy rollouts", [count(total) for total in totals])]
    rows += [
        ("part", name, [count(row.get(name, 0 if row else None)) for row in spent]) for name in used
    ]
    shared = {"verify": "Verification", "evolve": "Evolution"}
    if "evolve" not in used:
        del shared["evolve"]
    elif "verify" not in used:
        del shared["verify"]
    for purpose, name in shared.items():
        shares = [
            percent(row.get(purpose, 0) / total) if total else NONE
            for row, total in zip(spent, totals, strict=True)
        ]
        rows.append(("", f"{name}, share of all rollouts", shares))
    evaluated = [count(row.get("evaluate")) for row in by_purpose]
    rows.append(("", "Rollouts of evaluations, not counted above", evaluated))
    columns = (
        ("Generated tokens", "generated_tokens", count),
        ("LLM calls", "llm_calls", count),
        ("Money", "money", money),
        ("Time", "seconds", duration),
    )
    rows += [("", name, [show(a.result.get(key)) for a in arms]) for name, key, show in columns]
    return [row for row in rows if any(value != NONE for value in row[2])]


def _shipped(summary: Row, arms: Sequence[Arm]) -> Row | None:
    """Return the instruction to ship: the summary's (id, text or row), else the last evaluated."""
    best = summary.get("best_instruction")
    if isinstance(best, Mapping):
        return {"id": "", "born": None, "origin": "", **best}
    wanted = best or next((arm.best for arm in reversed(arms) if arm.best), None)
    for row in (row for arm in arms for row in reversed(arm.instructions)):
        if wanted and wanted in (row["id"], row["text"]):
            return row
    return {"id": "", "born": None, "origin": "", "text": best} if best else None


def _resumed(arm: Arm) -> list[tuple[Row, list[tuple[str, str]]]]:
    """Return each resume, with the fields of the run file that changed and how.

    Fields that may hold a key are only named: events do not contain their values.
    """

    def changed(pair: Any) -> str:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            return "another value, which is not recorded"
        return " → ".join(json.dumps(value, ensure_ascii=False) for value in pair)

    return [
        (event, [(name, changed(pair)) for name, pair in (event.get("changed") or {}).items()])
        for event in arm.of_kind("resumed")
    ]


def training_charts(arms: Sequence[Arm]) -> list[Chart | None]:
    """Draw reward, held-out score, behaviour and zero-advantage share over the steps."""
    return [
        _reward_chart(arms),
        _held_out_chart(arms),
        *behaviour_charts(arms),
        _metric_chart(arms, "zero_advantage_share", "Share of groups without advantage", True),
    ]


def _more_charts(arms: Sequence[Arm]) -> list[Chart | None]:
    return [
        _metric_chart(arms, "loss", "Loss"),
        _metric_chart(arms, "entropy", "Entropy of the policy (nats per token)"),
        _metric_chart(arms, "grad_norm", "Gradient norm"),
    ]


def _metric_chart(arms: Sequence[Arm], key: str, title: str, shares: bool = False) -> Chart | None:
    curves = [(arm.name, values(arm.metrics, key)) for arm in arms]
    return curves_chart(title, curves, "share" if shares else "number")


def _first(rows: Sequence[Row], *keys: str) -> list[Point]:
    """Return the points of the first of the metrics that was recorded."""
    return next((found for key in keys if (found := values(rows, key))), [])


def _reward_chart(arms: Sequence[Arm]) -> Chart | None:
    """Draw the training reward of each step; as per cent if it is the share of exact matches."""
    shares = all(arm.measure == EXACT_MATCH for arm in arms)
    before = "resample/reward_mean_before"
    if all(any(before in row for row in arm.metrics) for arm in arms):
        title = "Training reward per step, before groups were replaced"
        return _metric_chart(arms, before, title, shares)
    # Runs of an early version have TRL's own name alone.
    curves = [(arm.name, _first(arm.metrics, "reward_mean", "reward")) for arm in arms]
    return curves_chart("Training reward per step", curves, "share" if shares else "number")


def _held_out_chart(arms: Sequence[Arm]) -> Chart | None:
    """Draw held-out scores over training, one series per arm and split.

    From the initial instruction before training to the best one of its time; the trained policy
    under the initial instruction is in the table, not here.
    """
    curves: list[tuple[int, Arm, str, list[Point]]] = []
    for i, arm in enumerate(arms):
        by_split: dict[str, list[Row]] = {}
        for event in arm.of_kind("evaluated"):
            if event.get("when") not in ("plain", "hinted"):
                row = {**event, "step": event.get("trained", event["step"])}
                by_split.setdefault(str(event.get("split", "")), []).append(row)
        curves += [(i, arm, split, values(rows, "em")) for split, rows in sorted(by_split.items())]
    several = len({split for _, _, split, _ in curves}) > 1
    series: list[Series] = []
    for i, arm, split, points in curves:
        names = [arm.name] * (len(arms) > 1 or not several) + [split] * several
        if points:
            colour = style(len(series) if several else i)
            series.append(Series(", ".join(names), points, colour, dots=True))
    if not any(x > 0 for s in series for x, _ in s.points):
        return None  # nothing was trained: before and after would coincide
    measure = common_measure(arms)
    unit = "share" if measure == EXACT_MATCH else "number"
    return line_chart(f"Held-out {measure}", series, unit=unit, legend=len(series) > 1)


_ACTIONS = "actions/"
_NO_TOOL = frozenset({"answer", "invalid"})
_MOST_KINDS = 7


def behaviour_charts(arms: Sequence[Arm]) -> list[Chart]:
    """Draw tool calls, response and prompt length (INSPO Fig. 2), as far as they were recorded."""
    prompt = _metric_chart(arms, "prompt_tokens_mean", "Prompt length in tokens")
    drawn = (_calls_chart(arms), _response_chart(arms), prompt)
    return [chart for chart in drawn if chart]


def _calls_chart(arms: Sequence[Arm]) -> Chart | None:
    """Draw turns that call a tool: by tool for one run, of all tools together for several."""
    by_kind = [_calls(arm) for arm in arms]
    if any(set(calls) - _NO_TOOL for calls in by_kind):
        curves = _by_tool(by_kind[0])
        if len(arms) > 1:
            curves = [(arm.name, _sum(calls)) for arm, calls in zip(arms, by_kind, strict=True)]
        return curves_chart("Turns per rollout, by action", curves)
    turns = [(arm.name, values(arm.metrics, "turns_mean")) for arm in arms]
    if any(y > 1 for _, points in turns for _, y in points):
        return curves_chart("Turns per rollout", turns)
    return None


def _calls(arm: Arm) -> dict[str, list[Point]]:
    """Return the points of each kind of action; 0 at steps that took others only."""
    rows = [row for row in arm.metrics if any(key.startswith(_ACTIONS) for key in row)]
    keys = sorted({key for row in rows for key in row if key.startswith(_ACTIONS)})
    return {
        key.removeprefix(_ACTIONS): values([{**row, key: row.get(key, 0.0)} for row in rows], key)
        for key in keys
    }


def _by_tool(calls: dict[str, list[Point]]) -> list[tuple[str, list[Point]]]:
    """Return the tools that are called most, and turns that could not be used."""
    tools = sorted(set(calls) - _NO_TOOL, key=lambda kind: -sum(y for _, y in calls[kind]))
    curves = [(kind, calls[kind]) for kind in tools[:_MOST_KINDS]]
    return curves + [("unusable turns", calls[kind]) for kind in ("invalid",) if kind in calls]


def _sum(calls: dict[str, list[Point]]) -> list[Point]:
    """Return the points of all tools together."""
    total: dict[float, float] = {}
    for kind, points in calls.items():
        for x, y in points:
            total[x] = total.get(x, 0.0) + (y if kind not in _NO_TOOL else 0.0)
    return sorted(total.items())


def _response_chart(arms: Sequence[Arm]) -> Chart | None:
    # TRL's own log has the same number for runs from before `response_tokens_mean`.
    names = ("response_tokens_mean", "completions/mean_length")
    written = [(arm.name, _first(arm.metrics, *names)) for arm in arms]
    if len(arms) > 1:
        return curves_chart("Response length, own tokens", written)
    own, all_tokens = written[0][1], values(arms[0].metrics, "completion_tokens_mean")
    curves = [("written by the policy", own)]
    if any(a[1] > b[1] * 1.05 for a, b in zip(all_tokens, own, strict=False)):
        curves.append(("with observations", all_tokens))
    return curves_chart("Response length in tokens", curves)
