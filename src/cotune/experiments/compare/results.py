"""The summary of a suite: scores and costs of its runs, for summary.json."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.cells import Cell, State, in_one_line
from cotune.experiments.compare.stages import Finished, Setting
from cotune.experiments.compare.statistics import (
    Samples,
    gain,
    interval,
    probability_of_improvement,
)
from cotune.experiments.compare.suite_file import SuiteConfig, slug
from cotune.experiments.evaluate.quadrants import (
    DECODINGS,
    PROMPTS,
    QUADRANTS,
    per_question,
)
from cotune.run.json_files import Row
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH

_SUMS = ("generated_tokens", "llm_calls", "money", "seconds")
_HINTS = 5  # the best ones are listed
_COMPARED = 4  # the verdict names the first ones, so that it stays a sentence

Evaluations = dict[str, list[tuple[float, str, str]]]
"""(reward, id, stratum) of a run's test questions: "before" training; "after" training, under the
best instruction; "plain": after training, under the initial instruction. [] if not evaluated."""


def summarise(suite: SuiteConfig, cells: Sequence[Cell], setting: Setting) -> Row:
    """Return the content of a suite's summary.json, over the runs that are finished.

    Reads the run folders of finished stages. Marks a cell as failed if its evaluation is unusable.
    """
    by_key: dict[str, list[Cell]] = {entry.key: [] for entry in suite.methods}
    for cell in cells:
        by_key[cell.row.entry.key].append(cell)
    evaluations: dict[Cell, Evaluations] = {}
    for row_cells in by_key.values():
        evaluations |= _evaluations(suite, row_cells)
    baseline = [cell for cell in by_key[slug(suite.baseline)] if cell in evaluations]
    if unequal(baseline):
        baseline = []
    rows = [_row(suite, row_cells, evaluations, baseline) for row_cells in by_key.values()]
    measures = {row.pop("measure") for row in rows} - {None}
    first = next((_samples([cell], evaluations) for cell in cells if cell in evaluations), None)
    strata = Counter(first.strata[0].tolist()) if first else Counter[str]()
    summary: Row = {
        "schema_version": 1,
        "kind": "suite",
        "name": suite.name,
        "caption": suite.caption,
        "created": round(time.time(), 3),
        **asdict(setting),
        "seeds": list(suite.seeds),
        "budget": suite.budget,
        "tolerance": suite.tolerance,
        "baseline": slug(suite.baseline),
        "focus": suite.focus,
        "quadrant_samples": suite.quadrant_samples,
        "measure": measures.pop() if len(measures) == 1 else "mean reward",
        "strata": {name: strata[name] for name in sorted(strata) if name},
        "n": int(first.focused(suite.focus).rewards.shape[1]) if first else None,
        "methods": rows,
    }
    return {**summary, "verdict": _verdict(summary)}


def _evaluations(suite: SuiteConfig, cells: Sequence[Cell]) -> dict[Cell, Evaluations]:
    """Read the evaluations of a row's finished cells; all have the same number of questions.

    A cell whose evaluation is unusable fails; the others are kept.
    """
    by_cell: dict[Cell, Evaluations] = {}
    expected: tuple[int, int] | None = None
    for cell in cells:
        if cell.state != State.DONE:
            continue
        try:
            evaluations = _read(cell.finished)
            for questions in filter(None, evaluations.values()):
                scored = sum(stratum.startswith(suite.focus or "") for _, _, stratum in questions)
                counts = len(questions), scored
                if not scored or counts != (expected or counts):
                    total, some = expected or ("some", "some")
                    raise ConfigError(
                        f"{cell.finished[-1].folder}: was tested on {counts[0]} questions, {scored} "
                        f"of them to be scored; expected {total} and {some}, the same for each seed"
                    )
                expected = counts
            by_cell[cell] = evaluations
        except (CotuneError, OSError, KeyError, TypeError) as error:
            cell.fail(in_one_line(error))
    return by_cell


def _read(stages: Sequence[Finished]) -> Evaluations:
    """Read the rewards on the test questions, before the first stage and after the last.

    Raises:
        ConfigError: the last stage was not evaluated.
    """

    def rows(stage: Finished, at: str, when: str) -> list[tuple[float, str, str]]:
        run = RunDir.open(stage.folder)
        steps = {e.get("when"): e["step"] for e in run.read_events() if e["kind"] == "evaluated"}
        read = run.read_trajectories(steps[at], f"evaluate_{when}") if at in steps else []
        return [(row["reward"], row["task"]["id"], row["task"]["stratum"]) for row in read]

    last = stages[-1]
    after = rows(last, "after", "after")
    if not after:
        raise ConfigError(
            f"{last.folder}: was not evaluated on test questions at its end; remove the folder, and "
            "run it again"
        )
    plain, before = rows(last, "after", "plain"), rows(stages[0], "before", "before")
    return {"before": before, "after": after, "plain": plain}


def _samples(
    cells: Sequence[Cell], evaluations: Mapping[Cell, Evaluations], *whens: str
) -> Samples | None:
    """Return held-out rewards, a seed a row.

    `whens` are tried in order for each cell, "after" by default. None if there is no cell, or if one was
    evaluated at none of them.
    """
    whens = whens or ("after",)
    rows = [
        next((evaluations[cell][when] for when in whens if evaluations[cell][when]), [])
        for cell in cells
    ]
    if not rows or not all(rows):
        return None
    rewards, questions, strata = (
        np.array([[question[i] for question in row] for row in rows]) for i in range(3)
    )
    return Samples(rewards.astype(float), questions, strata)


def _row(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    evaluations: Mapping[Cell, Evaluations],
    baseline: Sequence[Cell],
) -> Row:
    """Return the summary of one row: what it is, what it cost, what it scored."""
    row, finished = cells[0].row, [cell for cell in cells if cell in evaluations]
    last = finished[0].finished[-1] if finished else None
    unequal_rollouts = unequal(finished)
    status, problem = "ok", ""
    if failed := [cell for cell in cells if cell.state == State.FAILED]:
        problems = [f"seed {cell.row.seed}: {cell.problem}" for cell in failed]
        status, problem = "failed", "; ".join([*problems, *filter(None, [unequal_rollouts])])
    elif unequal_rollouts:
        status, problem = "unequal", unequal_rollouts
    elif len(finished) < len(cells):
        status, problem = "unfinished", f"{len(finished)} of {len(cells)} seeds are finished"
    return {
        "name": row.entry.key,
        "method": row.entry.method,
        "label": row.label,
        "about": row.method.about,
        "group": row.method.group,
        "compute": row.entry.compute,
        "status": status,
        "problem": problem,
        "runs": {
            str(cell.row.seed): [
                str(stage.folder.relative_to(suite.output)) for stage in cell.finished
            ]
            for cell in cells
            if cell.finished
        },
        "measure": last.figures.get("measure") if last else None,
        **_mean_cost([_cost(cell) for cell in finished]),
        "finished": len(finished),
        "missing": {
            str(cell.row.seed): cell.standing for cell in cells if cell.state != State.DONE
        },
        "instruction": last.instruction if last else None,
        "hints": _best_hints(last) if last else [],
        **_scores(suite, [] if unequal_rollouts else finished, evaluations, baseline),
    }


def unequal(cells: Sequence[Cell]) -> str:
    """Say which finished cell paid more or fewer rollouts than its compute class allows; "" if none did."""
    for cell in cells:
        paid, allowed = int(_cost(cell)["rollouts"]), cell.row.allowance
        tolerance = cell.row.suite.tolerance
        low, high = allowed * (1 - tolerance), allowed * (1 + tolerance)
        if not low <= paid <= high:
            return (
                f"paid {paid:,} policy rollouts; its compute class {cell.row.entry.compute} allows "
                f"{low:,.0f} to {high:,.0f}"
            )
    return ""


def _best_hints(stage: Finished) -> list[Row]:
    """Return the best hints of the last phase of hint evolution, by mean reward on dev."""
    accepted: list[Row] = []
    for event in RunDir.open(stage.folder).read_events():
        if event["kind"] == "hint_phase":
            accepted = []
        elif event["kind"] == "hint_accepted":
            accepted.append({key: event[key] for key in ("text", "mean_dev_score")})
    return sorted(accepted, key=lambda hint: -hint["mean_dev_score"])[:_HINTS]


def _cost(cell: Cell) -> Row:
    """Return what all stages of a cell spent together."""
    purposes: Counter[str] = Counter()
    for stage in cell.finished:
        purposes.update(stage.figures["policy_rollouts"])
    evaluated = purposes.pop("evaluate", 0)
    sums = {key: sum(stage.figures.get(key) or 0 for stage in cell.finished) for key in _SUMS}
    if cell.row.suite.quadrant_samples and (quadrants := cell.quadrants()) is not None:
        evaluated += quadrants.rollouts
        sums["generated_tokens"] += quadrants.generated_tokens
    return {
        "rollouts": policy_rollouts(purposes),
        "rollouts_by_purpose": dict(purposes),
        "evaluation_rollouts": evaluated,
        **sums,
    }


def _mean_cost(costs: Sequence[Row]) -> Row:
    names = ("rollouts", "evaluation_rollouts", *_SUMS)
    if not costs:
        return {**dict.fromkeys(names), "rollouts_by_purpose": {}}
    purposes = sorted({name for cost in costs for name in cost["rollouts_by_purpose"]})
    return {
        **{name: sum(cost[name] for cost in costs) / len(costs) for name in names},
        "rollouts_by_purpose": {
            name: sum(cost["rollouts_by_purpose"].get(name, 0) for cost in costs) / len(costs)
            for name in purposes
        },
    }


def _scores(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    evaluations: Mapping[Cell, Evaluations],
    baseline: Sequence[Cell],
) -> Row:
    """Return held-out figures over the finished seeds; None and {} if there are none."""
    after = _samples(cells, evaluations)
    before = _samples(cells, evaluations, "before")
    # A run that took over an instruction was not evaluated under the suite's own.
    takes_over = bool(cells) and cells[0].row.takes_instruction
    plain = None if takes_over else _samples(cells, evaluations, "plain", "after")
    apart = None if takes_over else _samples(cells, evaluations, "plain")
    score = after and after.focused(suite.focus)
    scores: Row = {
        "score": _mean(score),
        "interval": score and interval(score),
        "score_all": _mean(after),
        "by_seed": {
            str(cell.row.seed): float(row.mean())
            for cell, row in zip(cells, score.rewards if score else (), strict=True)
        },
    }
    for name, samples in (("plain", plain), ("before", before)):
        focused = samples and samples.focused(suite.focus)
        scores |= {name: _mean(focused), f"{name}_all": _mean(samples)}
        scores[f"{name}_interval"] = focused and interval(focused)
    for name, samples in (("", after), ("plain_", apart), ("before_", before)):
        scores[f"{name}by_stratum"] = samples.by_stratum() if samples else {}
    scores |= _quadrants(suite, cells)
    if takes_over and (plain_scores := scores["quadrants"].get("trained_plain")):
        scores["plain"], scores["plain_interval"] = plain_scores["greedy"].values()
    return {**scores, **_against(suite, cells, evaluations, baseline)}


def _quadrants(suite: SuiteConfig, cells: Sequence[Cell]) -> Row:
    """Return the scores of each quadrant and the divergence under each prompt, over the seeds.

    {} of both if the suite does not want them, or a seed has none.
    """
    read = [cell.quadrants() for cell in cells] if suite.quadrant_samples else []
    by_seed = [quadrants for quadrants in read if quadrants is not None]
    if not by_seed or len(by_seed) < len(cells):
        return {"quadrants": {}, "divergence": {}}
    focus = suite.focus or ""
    kept = [[i for i, name in enumerate(q.strata) if name.startswith(focus)] for q in by_seed]

    def of_focus(values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return [[row[i] for i in at] for row, at in zip(values, kept, strict=True)]

    def spread(values: Sequence[Sequence[float]]) -> Row:
        """Return mean and interval of a value a question, seed by seed."""
        samples = Samples(
            np.array(values, dtype=float),
            np.array(of_focus([quadrants.questions for quadrants in by_seed])),
            np.array(of_focus([quadrants.strata for quadrants in by_seed])),
        )
        return {"mean": float(samples.rewards.mean()), "interval": interval(samples)}

    quadrants = {
        quadrant: {
            decoding: spread(of_focus([q.rewards[quadrant][decoding] for q in by_seed]))
            for decoding in DECODINGS
        }
        for quadrant in QUADRANTS
    }
    divergence = {
        prompt: spread(
            [per_question(row) for row in of_focus([q.divergences[prompt] for q in by_seed])]
        )
        for prompt in PROMPTS
        if all(q.trained for q in by_seed)
    }
    return {"quadrants": quadrants, "divergence": divergence}


def _mean(samples: Samples | None) -> float | None:
    return None if samples is None else float(samples.rewards.mean())


def _against(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    evaluations: Mapping[Cell, Evaluations],
    baseline: Sequence[Cell],
) -> Row:
    """Return the gain over the baseline on the seeds that both have finished."""
    nothing: Row = {"gain": None, "gain_interval": None, "probability_of_improvement": None}
    if not cells or cells[0].row.entry.key == slug(suite.baseline):
        return nothing
    baseline_by_seed = {cell.row.seed: cell for cell in baseline}
    both = [cell for cell in cells if cell.row.seed in baseline_by_seed]
    ours = _samples(both, evaluations)
    theirs = _samples([baseline_by_seed[cell.row.seed] for cell in both], evaluations)
    if ours is None or theirs is None:
        return nothing
    ours, theirs = ours.focused(suite.focus), theirs.focused(suite.focus)
    difference = gain(ours, theirs)
    if difference is None:
        return nothing
    return {
        "gain": difference[0],
        "gain_interval": difference[1],
        "probability_of_improvement": probability_of_improvement(ours, theirs),
    }


def _verdict(summary: Mapping[str, Any]) -> str:
    """Say in one sentence what the group "ours" gained over the baseline; without it, the best."""
    rows = {row["name"]: row for row in summary["methods"]}
    baseline = rows[summary["baseline"]]
    others = [row for row in rows.values() if row.get("gain") is not None]
    if baseline["score"] is None or not others:
        return "No comparison yet: too few runs are finished."
    ours = [row for row in others if row["group"] == "ours"][:_COMPARED]
    compared = ours or [max(others, key=lambda row: row["gain"])]
    shares = summary["measure"] == EXACT_MATCH
    clauses = [_gained(row, baseline["label"], shares) for row in compared]
    paired = {len(row["by_seed"].keys() & baseline["by_seed"].keys()) for row in compared}
    seeds = " to ".join(map(str, sorted({min(paired), max(paired)})))
    what = summary["measure"]
    if summary["focus"]:
        what += f" on the strata {summary['focus']}…"
    return (
        f"{'; '.join(clauses)}: held-out {what} over {seeds} seed{'s' * (seeds != '1')}, at a "
        f"budget of {summary['budget']:,} policy rollouts."
    )


def _gained(row: Row, baseline: str, shares: bool) -> str:
    """Say what a row gained: "INSPO ends 64.9 points (95 %: 59.2 to 70.4) above Search-R1"."""

    def size(value: float, sign: str = "") -> str:
        text = f"{value * 100:{sign}.1f}" if shares else f"{value:{sign}.3f}"
        return text.replace("-", "−")

    low, high = row["gain_interval"]
    if low <= 0 <= high:
        ends = f"{size(low, '+')} to {size(high, '+')}"
        return f"{row['label']} cannot be told apart from {baseline} (95 %: {ends})"
    near, far = sorted((abs(low), abs(high)))
    points = " points" if shares else ""
    return (
        f"{row['label']} ends {size(abs(row['gain']))}{points} (95 %: {size(near)} to {size(far)}) "
        f"{'below' if high < 0 else 'above'} {baseline}"
    )
