"""The summary of a suite: scores and costs of its runs, for summary.json."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.cells import Cell, State
from cotune.experiments.compare.statistics import Samples, gain, interval
from cotune.experiments.compare.suite_file import SuiteConfig, slug
from cotune.experiments.compare.suite_summary import Spread, SuiteMethod, SuiteSummary
from cotune.experiments.evaluate.quadrants import (
    DECODINGS,
    PROMPTS,
    QUADRANTS,
    Quadrants,
    per_question,
)
from cotune.run.costs import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.utils.tables import Scores

_SUMS = ("generated_tokens", "llm_calls", "money", "seconds")
TOLERANCE = 0.05
"""The share by which a row's rollouts may differ from its compute class."""
_COMPARED = 4  # the verdict names the first ones, so that it stays a sentence

Figures = dict[str, Samples]
"""What a finished cell scored on its test questions, each of one seed: "before" training; "score", after it under
the best instruction; "plain", after it under the initial one; its quadrants ("trained_plain greedy") and their
divergences ("KL plain")."""


def summarise(
    suite: SuiteConfig, cells: Sequence[Cell], setting: Mapping[str, Any]
) -> SuiteSummary:
    """Return a suite's summary, over the runs that are finished.

    Reads the run folders of finished stages. Marks a cell as failed if its evaluation is unusable.
    """
    by_key = {
        entry.key: [cell for cell in cells if cell.row.entry.key == entry.key]
        for entry in suite.methods
    }
    figures: dict[Cell, Figures] = {}
    for row_cells in by_key.values():
        figures |= _read_figures(suite, row_cells)
    baseline = [cell for cell in by_key[slug(suite.baseline)] if cell in figures]
    if unequal(baseline):
        baseline = []
    measures = {str(cell.finished[-1].figures.get("measure") or "") for cell in figures} - {""}
    first = next((figures[cell]["score"] for cell in cells if cell in figures), None)
    strata = Counter(first.strata[0].tolist()) if first else Counter[str]()
    summary = SuiteSummary(
        name=suite.name,
        caption=suite.caption,
        created=round(time.time(), 3),
        **setting,
        seeds=list(suite.seeds),
        budget=suite.budget,
        baseline=slug(suite.baseline),
        focus=suite.focus,
        quadrant_samples=suite.quadrant_samples,
        measure=measures.pop() if len(measures) == 1 else "mean reward",
        strata={name: strata[name] for name in sorted(strata) if name},
        n=int(first.focused(suite.focus).rewards.shape[1]) if first else None,
        methods=[_row(suite, cells, figures, baseline) for cells in by_key.values()],
    )
    return summary.model_copy(update={"verdict": _verdict(summary)})


def _read_figures(suite: SuiteConfig, cells: Sequence[Cell]) -> dict[Cell, Figures]:
    """Read the figures of a row's finished cells; all have the same number of questions.

    A cell whose evaluation is unusable fails; the others are kept.
    """
    by_cell: dict[Cell, Figures] = {}
    expected: tuple[int, int] | None = None
    for cell in cells:
        if cell.state != State.DONE:
            continue
        try:
            figures = _figures(cell, suite.focus)
            for name in figures.keys() & {"before", "score"}:
                strata = figures[name].strata[0].tolist()
                counts = len(strata), sum(name.startswith(suite.focus or "") for name in strata)
                if not counts[1] or counts != (expected or counts):
                    total, some = expected or ("some", "some")
                    raise ConfigError(
                        f"{cell.finished[-1].folder}: was tested on {counts[0]} questions, {counts[1]} "
                        f"of them to be scored; expected {total} and {some}, the same for each seed"
                    )
                expected = counts
            by_cell[cell] = figures
        except (CotuneError, OSError, KeyError, TypeError) as error:
            cell.fail(error)
    return by_cell


def _figures(cell: Cell, focus: str | None) -> Figures:
    """Read what a finished cell scored, before its first stage and after its last.

    Raises:
        ConfigError: the last stage was not evaluated.
    """
    row = cell.row
    first, last = (RunDir.open(cell.finished[i].folder) for i in (0, -1))
    figures: Figures = {}
    for name, run, when in (
        ("before", first, "before"),
        ("score", last, "after"),
        ("plain", last, "plain"),
    ):
        rows = run.read_evaluation(when)
        if rows:
            tasks = [each["task"] for each in rows]
            figures[name] = _of_one_seed(
                [each["reward"] for each in rows],
                [task["id"] for task in tasks],
                [task["stratum"] for task in tasks],
            )
    if "score" not in figures:
        raise ConfigError(
            f"{last.path}: was not evaluated on test questions at its end; remove the folder, and "
            "run it again"
        )
    # Without a "plain" evaluation, the best instruction is the run's initial one.
    figures.setdefault("plain", figures["score"])
    quadrants = cell.quadrants() if row.suite.quadrant_samples else None
    if quadrants is not None:
        figures |= _quadrant_figures(quadrants, focus or "")
    if row.takes_instruction(len(row.method.stages) - 1):
        # That was not evaluated under the suite's own instruction, but for its quadrants.
        del figures["plain"]
        if quadrants is not None:
            figures["plain"] = figures["trained_plain greedy"]
    return figures


def _quadrant_figures(quadrants: Quadrants, focus: str) -> Figures:
    focused = [i for i, name in enumerate(quadrants.strata) if name.startswith(focus)]
    questions = [quadrants.questions[i] for i in focused]
    strata = [quadrants.strata[i] for i in focused]
    values = {
        f"{name} {decoding}": [rewards[i] for i in focused]
        for name, by_decoding in quadrants.rewards.items()
        for decoding, rewards in by_decoding.items()
    }
    for prompt, divergences in quadrants.divergences.items():
        values[f"KL {prompt}"] = per_question([divergences[i] for i in focused])
    return {name: _of_one_seed(each, questions, strata) for name, each in values.items()}


def _of_one_seed(
    rewards: Sequence[float], questions: Sequence[str], strata: Sequence[str]
) -> Samples:
    return Samples(np.array([rewards], dtype=float), np.array([questions]), np.array([strata]))


def _over_seeds(
    cells: Sequence[Cell], figures: Mapping[Cell, Figures], name: str
) -> Samples | None:
    """Return a figure of some cells, a seed a row; None if there is no cell, or one lacks it."""
    samples = [figures[cell][name] for cell in cells if name in figures[cell]]
    if not samples or len(samples) < len(cells):
        return None
    arrays = zip(*((each.rewards, each.questions, each.strata) for each in samples), strict=True)
    rewards, questions, strata = map(np.vstack, arrays)
    return Samples(rewards, questions, strata)


def _row(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    figures: Mapping[Cell, Figures],
    baseline: Sequence[Cell],
) -> SuiteMethod:
    """Return the summary of one row: what it is, what it cost, what it scored."""
    row = cells[0].row
    finished = [cell for cell in cells if cell in figures]
    unequal_rollouts = unequal(finished)
    without = [f"seed {c.row.seed}: {c.standing}" for c in cells if c.state != State.DONE]
    status = "ok"
    if any(cell.state == State.FAILED for cell in cells):
        status = "failed"
    elif unequal_rollouts:
        status = "unequal"
    elif without:
        status = "unfinished"
    return SuiteMethod(
        name=row.entry.key,
        label=row.label,
        group=row.method.group,
        compute=row.entry.compute,
        status=status,
        problem="; ".join(filter(None, [*without, unequal_rollouts])),
        runs={str(cell.row.seed): folders for cell in cells if (folders := _run_folders(cell))},
        costs=_means([_cost(cell) for cell in finished]),
        rollouts_by_purpose=_means([_purposes(cell) for cell in finished]),
        finished=len(finished),
        instruction=finished[0].finished[-1].instruction if finished else None,
        **_scores(suite, [] if unequal_rollouts else finished, figures, baseline),
    )


def _run_folders(cell: Cell) -> list[str]:
    """Return the run folders of the stages that have begun, relative to the suite's folder."""
    row = cell.row
    folders = map(row.stage_folder, range(len(row.method.stages)))
    return [str(f.relative_to(row.suite.output)) for f in folders if RunDir.is_run(f)]


def unequal(cells: Sequence[Cell]) -> str:
    """Say which finished cell paid more or fewer rollouts than its compute class allows; "" if none did."""
    for cell in cells:
        paid = policy_rollouts(_purposes(cell))
        low = cell.row.allowance * (1 - TOLERANCE)
        high = cell.row.allowance * (1 + TOLERANCE)
        if not low <= paid <= high:
            return (
                f"paid {paid:,} policy rollouts; its compute class {cell.row.entry.compute} allows "
                f"{low:,.0f} to {high:,.0f}"
            )
    return ""


def _purposes(cell: Cell) -> Counter[str]:
    """Return the policy rollouts of all stages by purpose, without evaluation."""
    purposes = Counter[str]()
    for stage in cell.finished:
        purposes.update(stage.figures["policy_rollouts"])
    del purposes["evaluate"]
    return purposes


def _cost(cell: Cell) -> dict[str, float]:
    """Return what all stages of a cell spent together."""
    figures = [stage.figures for stage in cell.finished]
    costs = {key: sum(each.get(key) or 0 for each in figures) for key in _SUMS}
    costs["rollouts"] = policy_rollouts(_purposes(cell))
    evaluated = sum(each["policy_rollouts"].get("evaluate", 0) for each in figures)
    if cell.row.suite.quadrant_samples and (quadrants := cell.quadrants()) is not None:
        evaluated += quadrants.rollouts
        costs["generated_tokens"] += quadrants.generated_tokens
    return {**costs, "evaluation_rollouts": evaluated}


def _means(costs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = sorted({name for cost in costs for name in cost})
    return {name: sum(cost.get(name, 0) for cost in costs) / len(costs) for name in names}


def _scores(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    figures: Mapping[Cell, Figures],
    baseline: Sequence[Cell],
) -> dict[str, Any]:
    """Return held-out figures over the finished seeds; those that are not known are left out."""
    score = _over_seeds(cells, figures, "score")
    if score is None:
        return {}
    spreads: dict[str, Spread] = {}
    for name in figures[cells[0]]:
        if samples := _over_seeds(cells, figures, name):
            focused = samples.focused(suite.focus)
            mean = float(focused.rewards.mean())
            # No page shows how far a divergence varies, and it is no share.
            ends = None if name.startswith("KL ") else interval(focused)
            spreads[name] = Spread(mean=mean, interval=ends, by_stratum=samples.by_stratum())
    means = score.focused(suite.focus).rewards.mean(axis=1).tolist()
    return {
        **{name: spreads[name] for name in ("score", "plain", "before") if name in spreads},
        "by_seed": dict(zip((str(cell.row.seed) for cell in cells), means, strict=True)),
        "gain": _gain(suite, cells, figures, baseline),
        "quadrants": {
            name: {decoding: spreads[f"{name} {decoding}"] for decoding in DECODINGS}
            for name in QUADRANTS
            if f"{name} {DECODINGS[0]}" in spreads
        },
        "divergence": {
            prompt: spreads[f"KL {prompt}"] for prompt in PROMPTS if f"KL {prompt}" in spreads
        },
    }


def _gain(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    figures: Mapping[Cell, Figures],
    baseline: Sequence[Cell],
) -> Spread | None:
    """Return the gain over the baseline on the seeds that both have finished."""
    if cells[0].row.entry.key == slug(suite.baseline):
        return None
    by_seed = {cell.row.seed: cell for cell in baseline}
    paired = [cell for cell in cells if cell.row.seed in by_seed]
    scores = _over_seeds(paired, figures, "score")
    baseline_scores = _over_seeds([by_seed[cell.row.seed] for cell in paired], figures, "score")
    if scores is None or baseline_scores is None:
        return None
    difference = gain(scores.focused(suite.focus), baseline_scores.focused(suite.focus))
    return Spread(mean=difference[0], interval=difference[1]) if difference else None


def _verdict(suite: SuiteSummary) -> str:
    """Say in one sentence what the methods of the group "ours" gained over the baseline; without any, the best."""
    baseline = suite.baseline_method
    compared = [row for row in suite.methods if row.gain]
    compared.sort(key=lambda row: row.group != "ours")
    joint_methods = sum(row.group == "ours" for row in compared)
    if baseline.score is None or not compared:
        return "No comparison yet: too few runs are finished."
    if not joint_methods:
        compared.sort(key=lambda row: -row.gain.mean if row.gain else 0.0)
    form = Scores(suite.shares)
    clauses: list[str] = []
    for row in compared[: min(joint_methods, _COMPARED) or 1]:
        assert row.gain is not None
        cell = form.cell(row.gain.mean, row.gain.interval, change=True)
        ends = f" (95 %: {cell.note})" if cell.note else ""
        clear = "" if cell.css else ", which may be none"
        clauses.append(f"{row.label} {cell.text}{' points' * suite.shares}{ends}{clear}")
    seeds = {len(row.by_seed.keys() & baseline.by_seed.keys()) for row in compared}
    over = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
    over = "one seed, which says nothing of others" if over == "1" else f"{over} seeds"
    return (
        f"{suite.title} over {baseline.label}: {'; '.join(clauses)}; at a budget of {suite.budget:,} policy "
        f"rollouts, over {over}."
    )
