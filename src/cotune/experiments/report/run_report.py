"""The report of a run: result, cost, curves, instructions, hints, rollouts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from cotune.experiments.evaluate.quadrants import quadrant_table
from cotune.experiments.report.charts import Chart, Point, Series, curves_chart, line_chart, style
from cotune.experiments.report.instructions import hints_of, leaders, population
from cotune.experiments.report.pages import label, moment, write_page
from cotune.experiments.report.recorded_run import RecordedRun, values
from cotune.experiments.report.rollouts import MOST_TURNS, some_evaluated, some_groups
from cotune.run.events import EVENTS, describe_event
from cotune.run.json_files import Row
from cotune.run.notices import TRUNCATED_SHARE, truncation_notice
from cotune.run.scores import Score, wilson
from cotune.utils.tables import NONE, Cell, Scores, Table, count, duration, money, percent
from cotune.utils.text import command_on

# Evaluations that do not use the best instruction of their time, or not the best policy.
_OTHER_PROMPTS = ("plain", "uplift", "hinted", "last")
_EVALUATIONS = {
    "before": "before training, initial instruction",
    "plain": "trained, initial instruction",
    "after": "trained, best instruction",
}
_MOST_REJECTED = 100  # texts of rejected proposals that the page shows, so that it stays small
_CURVES = {
    "Prompt length in tokens": "prompt_tokens_mean",
    "Share of groups without advantage": "zero_advantage_share",
    "Share of rollouts that were truncated": TRUNCATED_SHARE,
}
_MORE_CURVES = {
    "Loss": "loss",
    "Entropy of the policy (nats per token)": "entropy",
    "Gradient norm": "grad_norm",
}


def write_report(folder: Path) -> Path:
    """Write report.html into a run folder, from its files only; return its path.

    Unfinished runs are reported as far as they came.

    Raises:
        ConfigError: `folder` is no run's, or one of its files cannot be read.
    """
    run = RecordedRun(folder)
    evaluated, evaluated_from = some_evaluated(run.folder)
    by_script = "library" in run.config
    hints = hints_of(run)
    content: dict[str, Any] = {
        "title": run.name,
        "resume": "" if by_script else command_on(folder, "resume"),
        "measure_quadrants": "" if by_script else command_on(folder, "evaluate", "--quadrants"),
        "run": run,
        "refresh": not run.finished,
        "facts": _facts(run),
        "verdict": _verdict(run),
        "tables": [
            *([quadrant_table(run.quadrants)] if run.quadrants else []),
            *results(run),
        ],
        "costs": costs(run),
        "shipped": _shipped(run),
        "kept": run.kept.statement() if run.kept else "",
        "charts": training_charts(run),
        "more": _charts(run, _MORE_CURVES),
        # A run evolves instructions or hints; with hints, the failed proposals are theirs.
        "population": None if hints else population(run),
        "hints": hints,
        "groups": some_groups(run.folder),
        "evaluated": evaluated,
        "evaluated_from": evaluated_from,
        "most_turns": MOST_TURNS,
        "most_rejected": _MOST_REJECTED,
        "notices": _notices(run),
    }
    return write_page(folder, "run.html.j2", content)


def _facts(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what the header says was run: method, model, seed, length and time."""
    times = [row["time"] for row in (*run.events, *run.metrics)]
    facts = [
        ("Method", label(run.config.get("strategy"))),
        ("Environment", label(run.config.get("environment"))),
        ("Model", label(run.config.get("policy"))),
        ("Proposer", label(run.summary.get("llm"))),
        ("Seed", label(run.config.get("seed"))),
        ("Steps", str(run.steps or "")),
        (
            "When",
            f"{moment(min(times))}, over {duration(max(times) - min(times))}" if times else "",
        ),
    ]
    return [(name, value) for name, value in facts if value]


def _verdict(run: RecordedRun) -> str:
    """Return one sentence on the outcome."""
    score = run.scores.score
    measure = f"Held-out {run.measure}"
    before = run.evaluations.get("before")
    after = run.evaluations.get("after")
    if after is None:
        for event in reversed(run.of_kind("evaluated")):
            when = event.get("when")
            if event.get("em") is not None and when not in (*_OTHER_PROMPTS, "contender"):
                step = f"at step {event.get('trained', event['step'])}"
                when = "before training" if when == "before" else step
                return f"{measure} was {score(event['em'])} {when}."
        return "No held-out result yet."
    if before is None:
        return f"{measure} is {score(after.score.em)}."
    if after.score.em == before.score.em:
        return f"{measure} stayed at {score(after.score.em)}."
    values = f"from {score(before.score.em)} to {score(after.score.em)}"
    ends = after.gain_interval(before)
    if ends is None:
        return f"{measure} went {values}."
    if ends[0] <= 0 <= ends[1]:
        n = count(after.score.n)
        return f"{measure} went {values}; {n} questions cannot tell this from no change."
    return f"{measure} {'rose' if ends[0] > 0 else 'fell'} {values}."


def results(run: RecordedRun) -> list[Table]:
    """Return the table of scores by stratum, before and after training; [] if there are none."""
    measured = run.evaluations
    if not measured:
        return []
    form = run.scores
    strata: dict[str, int] = {}
    for each in measured.values():
        strata |= {name: n for name, (_, n) in each.score.by_stratum.items()}
    rows = [
        [
            Cell(_EVALUATIONS[when]),
            form.cell(each.score.em, each.score.interval),
            *(_stratum_cell(form, each.score, name) for name in strata),
        ]
        for when, each in measured.items()
    ]
    if {"before", "after"} <= measured.keys():
        before = measured["before"]
        after = measured["after"]
        points = ", in percentage points" if form.shares else ""
        gain = form.cell(after.score.em - before.score.em, after.gain_interval(before), change=True)
        rows.append([Cell(f"change{points}"), gain, *(Cell("") for _ in strata)])
    sizes = {"Overall": max(each.score.n for each in measured.values()), **strata}
    heads = [Cell(name, f"n\u00a0=\u00a0{count(n)}" if n else "") for name, n in sizes.items()]
    notes = "Small: 95 % intervals over questions. One seed: another may end elsewhere."
    if not run.finished:
        notes = f"Training has not finished. {notes}"
    return [Table([Cell(f"Held-out {run.measure}"), *heads], rows, notes)]


def _stratum_cell(form: Scores, score: Score, name: str) -> Cell:
    if name not in score.by_stratum:
        return Cell()
    mean, n = score.by_stratum[name]
    return form.cell(mean, wilson(mean, n) if form.shares and n else None)


def costs(run: RecordedRun) -> list[tuple[str, str]]:
    """Return what is counted, and its value. Evaluation is counted apart: no method pays for it."""
    totals = run.folder.totals()
    spent = {name: n for name, n in totals.rollouts.items() if n and name != "evaluate"}
    paid = sum(spent.values())
    rows = [("Policy rollouts", count(paid or None))]
    rows += [(f"· {name}", f"{count(n)} ({percent(n / paid)})") for name, n in spent.items()]
    waited = run.values("llm/waited_seconds")
    rows += [
        ("Rollouts of evaluations, not counted above", count(totals.rollouts["evaluate"] or None)),
        ("Generated tokens", count(sum(totals.generated_tokens.values()) or None)),
        ("LLM calls", count(totals.llm_calls)),
        ("· waited for", duration(sum(y for _, y in waited) if waited else None)),
        ("Phases without a useful proposal", count(len(run.of_kind("phase_failed")) or None)),
        ("Money", money(totals.money)),
        ("Time", duration(run.folder.seconds_spent() or None)),
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


def _notices(run: RecordedRun) -> list[str]:
    """Return resumes with the fields of the run file that changed and how, then all notices.

    Fields that may hold a key are only named: events do not contain their values.
    """
    lines: list[str] = []
    for event in run.of_kind("resumed"):
        line = f"resumed from step {event['from_step']} (attempt {event['attempt']})"
        changed = [
            f"{name} {' → '.join(json.dumps(value, ensure_ascii=False) for value in pair)}"
            if pair is not None
            else f"{name} another value, which is not recorded"
            for name, pair in event["changed"].items()
        ]
        lines.append(f"{line}, with another run file: {'; '.join(changed)}" if changed else line)
    for event in run.events:
        kind = EVENTS.get(event["kind"])
        if kind is not None and kind.notable:
            # A notice without a text of its own gets the console's.
            text = event.get("text") or Text.from_markup(describe_event(event["kind"], event)).plain
            lines.append(f"step {event['step']}: {text}")
    truncated = ((row["step"], truncation_notice(row)) for row in run.metrics)
    return lines + [f"step {step}: {text}" for step, text in truncated if text][:1]


def training_charts(run: RecordedRun) -> list[Chart]:
    """Draw reward, held-out score, behaviour (INSPO Fig. 2) and zero-advantage share over the steps."""
    reward = [(run.name, run.values("reward_mean"))]
    lengths = [("written by the policy", run.values("response_tokens_mean"))]
    observed = run.values("completion_tokens_mean")
    if any(y > tokens * 1.05 for (_, y), (_, tokens) in zip(observed, lengths[0][1], strict=False)):
        lengths.append(("with observations", observed))
    charts = (
        curves_chart(
            "Training reward per step",
            reward,
            share=run.scores.shares,
            guides=leaders(run.events),
        ),
        _held_out_chart(run),
        curves_chart("Turns per rollout, by action", _actions(run)),
        curves_chart("Response length in tokens", lengths),
    )
    return [chart for chart in charts if chart] + _charts(run, _CURVES)


def _charts(run: RecordedRun, curves: Mapping[str, str]) -> list[Chart]:
    """Draw the metrics that were recorded, by title and name."""
    charts = (
        curves_chart(title, [(run.name, run.values(key))], share=title.startswith("Share"))
        for title, key in curves.items()
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
    if not any(x > 0 for _, points in curves for x, _ in points):
        return None  # nothing was trained: before and after would coincide
    series = [Series(split, points, style(i)) for i, (split, points) in enumerate(curves)]
    return line_chart(f"Held-out {run.measure}", series, share=run.scores.shares)


def _actions(run: RecordedRun) -> list[tuple[str, list[Point]]]:
    """Return how often a rollout takes each action of a tool, those taken most first, and unusable turns."""
    prefix = "actions/"
    rows = [row for row in run.metrics if any(key.startswith(prefix) for key in row)]
    names = {key for row in rows for key in row if key.startswith(prefix)} - {f"{prefix}answer"}
    # 0 at steps that took other actions only
    curves = {
        name.removeprefix(prefix): values([{name: 0.0, **row} for row in rows], name)
        for name in sorted(names)
    }
    unusable = curves.pop("invalid", [])
    frequent = sorted(curves, key=lambda kind: -sum(y for _, y in curves[kind]))[:7]
    lines = [(kind, curves[kind]) for kind in frequent]
    return [*lines, ("unusable turns", unusable)] if lines else []
