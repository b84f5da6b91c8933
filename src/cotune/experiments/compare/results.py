"""The summary of a suite: scores and costs of its runs, for summary.json."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.cells import Cell, State, in_one_line
from cotune.experiments.compare.stages import Finished
from cotune.experiments.compare.statistics import (
    Samples,
    gain,
    interval,
    probability_of_improvement,
)
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

_SUMS = ("generated_tokens", "llm_calls", "money", "seconds")
TOLERANCE = 0.05
"""The share by which a row's rollouts may differ from its compute class."""
_COMPARED = 4  # the verdict names the first ones, so that it stays a sentence

Evaluations = dict[str, list[tuple[float, str, str]]]
"""(reward, id, stratum) of a run's test questions: "before" training; "after" training, under the
best instruction; "plain": after training, under the initial instruction. [] if not evaluated."""


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
    evaluations: dict[Cell, Evaluations] = {}
    for row_cells in by_key.values():
        evaluations |= _evaluations(suite, row_cells)
    baseline = [cell for cell in by_key[slug(suite.baseline)] if cell in evaluations]
    if unequal(baseline):
        baseline = []
    measures = {str(cell.finished[-1].figures.get("measure") or "") for cell in evaluations} - {""}
    first = next((_samples([cell], evaluations) for cell in cells if cell in evaluations), None)
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
        methods=[_row(suite, cells, evaluations, baseline) for cells in by_key.values()],
    )
    return summary.model_copy(update={"verdict": _verdict(summary)})


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
) -> SuiteMethod:
    """Return the summary of one row: what it is, what it cost, what it scored."""
    row, finished = cells[0].row, [cell for cell in cells if cell in evaluations]
    unequal_rollouts = unequal(finished)
    failed = [f"seed {c.row.seed}: {c.problem}" for c in cells if c.state == State.FAILED]
    status, problem = "ok", "; ".join(filter(None, [*failed, unequal_rollouts]))
    if problem:
        status = "failed" if failed else "unequal"
    elif len(finished) < len(cells):
        status, problem = "unfinished", f"{len(finished)} of {len(cells)} seeds are finished"
    return SuiteMethod(
        name=row.entry.key,
        label=row.label,
        group=row.method.group,
        compute=row.entry.compute,
        status=status,
        problem=problem,
        runs={
            str(cell.row.seed): [
                str(stage.folder.relative_to(suite.output)) for stage in cell.finished
            ]
            for cell in cells
            if cell.finished
        },
        costs=_means([_cost(cell) for cell in finished]),
        rollouts_by_purpose=_means([_purposes(cell) for cell in finished]),
        finished=len(finished),
        missing={str(cell.row.seed): cell.standing for cell in cells if cell.state != State.DONE},
        instruction=finished[0].finished[-1].instruction if finished else None,
        **_scores(suite, [] if unequal_rollouts else finished, evaluations, baseline),
    )


def unequal(cells: Sequence[Cell]) -> str:
    """Say which finished cell paid more or fewer rollouts than its compute class allows; "" if none did."""
    for cell in cells:
        paid, allowed = policy_rollouts(_purposes(cell)), cell.row.allowance
        low, high = allowed * (1 - TOLERANCE), allowed * (1 + TOLERANCE)
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
    evaluations: Mapping[Cell, Evaluations],
    baseline: Sequence[Cell],
) -> dict[str, Any]:
    """Return held-out figures over the finished seeds; those that are not known are left out."""
    scores: dict[str, Any] = {}
    for name, whens in (
        ("score", ("after",)),
        ("plain", ("plain", "after")),
        ("before", ("before",)),
    ):
        if samples := _samples(cells, evaluations, *whens):
            scores[name] = _spread(samples, suite.focus)
    if after := _samples(cells, evaluations):
        seeds = [str(cell.row.seed) for cell in cells]
        means = after.focused(suite.focus).rewards.mean(axis=1).tolist()
        scores["by_seed"] = dict(zip(seeds, means, strict=True))
    scores |= _quadrants(suite, cells)
    # A run that took over an instruction was not evaluated under the suite's own, but for its quadrants.
    if cells and cells[0].row.takes_instruction:
        scores["plain"] = scores.get("quadrants", {}).get("trained_plain", {}).get("greedy")
    return {**scores, **_against(suite, cells, evaluations, baseline)}


def _spread(samples: Samples, focus: str | None = None) -> Spread:
    """Return the mean over the questions that a focus leaves, and the mean of each stratum."""
    focused = samples.focused(focus)
    mean = float(focused.rewards.mean())
    return Spread(mean=mean, interval=interval(focused), by_stratum=samples.by_stratum())


def _quadrants(suite: SuiteConfig, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the scores of each quadrant and the divergence under each prompt, over the seeds.

    {} if the suite does not want them, or a seed has none.
    """
    read = [cell.quadrants() for cell in cells] if suite.quadrant_samples else []
    by_seed = [quadrants for quadrants in read if quadrants is not None]
    if not by_seed or len(by_seed) < len(cells):
        return {}

    def focused(seed: Quadrants, values: Sequence[Any]) -> list[Any]:
        focus = suite.focus or ""
        return [v for v, name in zip(values, seed.strata, strict=True) if name.startswith(focus)]

    questions = np.array([focused(seed, seed.questions) for seed in by_seed])
    strata = np.array([focused(seed, seed.strata) for seed in by_seed])

    def spread(values: Sequence[Sequence[float]]) -> Spread:
        return _spread(Samples(np.array(values, dtype=float), questions, strata))

    return {
        "quadrants": {
            name: {
                decoding: spread([focused(q, q.rewards[name][decoding]) for q in by_seed])
                for decoding in DECODINGS
            }
            for name in QUADRANTS
        },
        "divergence": {
            prompt: spread([per_question(focused(q, q.divergences[prompt])) for q in by_seed])
            for prompt in PROMPTS
            if all(q.trained for q in by_seed)
        },
    }


def _against(
    suite: SuiteConfig,
    cells: Sequence[Cell],
    evaluations: Mapping[Cell, Evaluations],
    baseline: Sequence[Cell],
) -> dict[str, Any]:
    """Return the gain over the baseline on the seeds that both have finished."""
    if not cells or cells[0].row.entry.key == slug(suite.baseline):
        return {}
    by_seed = {cell.row.seed: cell for cell in baseline}
    both = [cell for cell in cells if cell.row.seed in by_seed]
    ours = _samples(both, evaluations)
    theirs = _samples([by_seed[cell.row.seed] for cell in both], evaluations)
    if ours is None or theirs is None:
        return {}
    ours, theirs = ours.focused(suite.focus), theirs.focused(suite.focus)
    if (difference := gain(ours, theirs)) is None:
        return {}
    return {
        "gain": Spread(mean=difference[0], interval=difference[1]),
        "probability_of_improvement": probability_of_improvement(ours, theirs),
    }


def _verdict(suite: SuiteSummary) -> str:
    """Say in one sentence what the group "ours" gained over the baseline; without it, the best."""
    baseline = suite.baseline_method
    others = [row for row in suite.methods if row.gain is not None]
    if baseline.score is None or not others:
        return "No comparison yet: too few runs are finished."
    ours = [row for row in others if row.group == "ours"][:_COMPARED]
    compared = ours or [max(others, key=lambda row: row.gain.mean if row.gain else 0.0)]
    clauses = [_gained(row, baseline.label, suite.shares) for row in compared]
    paired = {len(row.by_seed.keys() & baseline.by_seed.keys()) for row in compared}
    seeds = " to ".join(map(str, sorted({min(paired), max(paired)})))
    what = f"{suite.measure} on the strata {suite.focus}…" if suite.focus else suite.measure
    return (
        f"{'; '.join(clauses)}: held-out {what} over {seeds} seed{'s' * (seeds != '1')}, at a "
        f"budget of {suite.budget:,} policy rollouts."
    )


def _gained(row: SuiteMethod, baseline: str, shares: bool) -> str:
    """Say what a row gained: "INSPO ends 64.9 points (95 %: 59.2 to 70.4) above Search-R1"."""

    def size(value: float, sign: str = "") -> str:
        text = f"{value * 100:{sign}.1f}" if shares else f"{value:{sign}.3f}"
        return text.replace("-", "−")

    assert row.gain is not None
    low, high = row.gain.interval
    if low <= 0 <= high:
        ends = f"{size(low, '+')} to {size(high, '+')}"
        return f"{row.label} cannot be told apart from {baseline} (95 %: {ends})"
    near, far = sorted((abs(low), abs(high)))
    points = " points" if shares else ""
    return (
        f"{row.label} ends {size(abs(row.gain.mean))}{points} (95 %: {size(near)} to {size(far)}) "
        f"{'below' if high < 0 else 'above'} {baseline}"
    )
