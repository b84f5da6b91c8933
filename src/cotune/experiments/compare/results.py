"""What a suite's cells came to: the rows of its table."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cotune.errors import ConfigError, CotuneError
from cotune.experiments.compare.cells import Cell, State
from cotune.experiments.compare.stages import Finished, Row, Setting
from cotune.experiments.compare.statistics import (
    Samples,
    gain,
    interval,
    probability_of_improvement,
)
from cotune.experiments.compare.suite_file import SuiteConfig, slug
from cotune.run.json_files import Row as Json
from cotune.run.ledger import policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH

_SUMS = ("generated_tokens", "llm_calls", "money", "seconds")


def summarise(suite: SuiteConfig, cells: Sequence[Cell], setting: Setting) -> Json:
    """The suite's summary, as `summary.json` has it; of what is finished so far.

    Reads the run folders of stages that are finished, and how far the others came.
    """
    by_key: dict[str, list[Cell]] = {entry.key: [] for entry in suite.methods}
    for cell in cells:
        by_key[cell.row.entry.key].append(cell)
    for mine in by_key.values():
        _check_readable(suite, mine)
    base = _baseline(suite, by_key[slug(suite.baseline)])
    rows = [_row(suite, mine, base) for mine in by_key.values()]
    measures = {row.pop("measure") for row in rows} - {None}
    tested = next(filter(None, (samples_of(_done(mine)) for mine in by_key.values())), None)
    summary: Json = {
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
        "measure": measures.pop() if len(measures) == 1 else "mean reward",
        "strata": _strata(tested) if tested else {},
        "n": int(tested.focused(suite.focus).rewards.shape[1]) if tested else None,
        "methods": rows,
    }
    return {**summary, "verdict": verdict(summary)}


def _check_readable(suite: SuiteConfig, cells: Sequence[Cell]) -> None:
    """Fails a method's finished cells whose evaluation cannot be used; the others stay."""
    expected: tuple[int, int] | None = None
    for cell in _done(cells):
        try:
            for plain in (False, True):
                strata = _rewards(cell.finished[-1], plain)[2]
                counts = len(strata), sum(name.startswith(suite.focus or "") for name in strata)
                if not counts[1] or counts != (expected or counts):
                    total, scored = expected or ("some", "some")
                    raise ConfigError(
                        f"{cell.finished[-1].folder}: was tested on {counts[0]} questions, "
                        f"{counts[1]} of them to be scored; expected {total} and {scored}, as many "
                        "for each seed"
                    )
                expected = counts
        except (CotuneError, OSError, KeyError, TypeError) as error:
            kind = "" if isinstance(error, CotuneError) else f"{type(error).__name__}: "
            cell.fail(kind + " ".join(str(error).split()))


def _baseline(suite: SuiteConfig, cells: Sequence[Cell]) -> "_Seeds | None":
    """The baseline's rewards by seed; None where it is not finished or is left out of the table."""
    done = _done(cells)
    paid = [_cost(cell)["rollouts"] for cell in done]
    left_out = suite.unequal == "refuse" and unequal(cells[0].row, paid)
    samples = None if left_out else samples_of(done)
    return None if samples is None else _Seeds([cell.row.seed for cell in done], samples)


@dataclass(frozen=True)
class _Seeds:
    """Rewards with the seed of each row."""

    seeds: list[int]
    samples: Samples


def _done(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.state == State.DONE]


def _row(suite: SuiteConfig, cells: Sequence[Cell], base: _Seeds | None) -> Json:
    """One method: what it is, what it cost, how it did."""
    row = cells[0].row
    done = _done(cells)
    costs = [_cost(cell) for cell in done]
    status, problem = _status(suite, cells, costs)
    found: Json = {
        "name": row.entry.key,
        "method": row.entry.method,
        "label": row.label,
        "about": row.method.about,
        "group": row.method.group,
        "compute": row.entry.compute or row.method.compute,
        "status": status,
        "problem": problem,
        "note": "; ".join(_notes(done)),
        "runs": {
            str(cell.row.seed): [str(one.folder.relative_to(suite.output)) for one in cell.finished]
            for cell in cells
            if cell.finished
        },
        "measure": done[0].finished[-1].figures.get("measure") if done else None,
        **_mean_cost(costs),
        "finished": len(done),
        "missing": {str(c.row.seed): c.standing for c in cells if c.state != State.DONE},
        "instruction": done[0].finished[-1].instruction if done else None,
    }
    off = unequal(row, [cost["rollouts"] for cost in costs])
    shown = done if not off or suite.unequal == "flag" else []
    return {**found, **_scores(suite, shown, base)}


def _status(suite: SuiteConfig, cells: Sequence[Cell], costs: Sequence[Json]) -> tuple[str, str]:
    """ok, failed, unequal or unfinished, and why: the worst of its seeds."""
    off = unequal(cells[0].row, [cost["rollouts"] for cost in costs])
    if failed := [cell for cell in cells if cell.state == State.FAILED]:
        problems = [f"seed {c.row.seed}: {c.problem}" for c in failed]
        return "failed", "; ".join([*problems, *([off] if off else [])])
    if off:
        return "unequal", off
    if any(cell.state != State.DONE for cell in cells):
        return "unfinished", f"{len(costs)} of {len(cells)} seeds are finished"
    return "ok", ""


def unequal(row: Row, paid: Sequence[int]) -> str:
    """Why what a row paid is not of its compute class; "" where it is.

    Args:
        paid: policy rollouts of each seed: training, verification and evolution.
    """
    allowed, tolerance = row.allowance or 0.0, row.suite.tolerance
    low, high = allowed * (1 - tolerance), allowed * (1 + tolerance)
    if off := [count for count in paid if not low <= count <= high]:
        return (
            f"paid {off[0]:,} policy rollouts; its compute class "
            f"{row.entry.compute or row.method.compute} allows {low:,.0f} to {high:,.0f}"
        )
    return ""


def _notes(cells: Sequence[Cell]) -> list[str]:
    if cells and cells[0].row.needs:
        return [f"on top of what {' and '.join(cells[0].row.needs)} paid"]
    notes = [RunDir.open(one.folder).read_summary() or {} for c in cells for one in c.finished]
    return list(dict.fromkeys(str(note["note"]) for note in notes if note.get("note")))


def _cost(cell: Cell) -> Json:
    """What all stages of a cell spent together."""
    purposes: Counter[str] = Counter()
    for one in cell.finished:
        purposes.update(one.figures["policy_rollouts"])
    evaluated = purposes.pop("evaluate", 0)
    return {
        "rollouts": policy_rollouts(purposes),
        "rollouts_by_purpose": dict(purposes),
        "evaluation_rollouts": evaluated,
        **{key: sum(one.figures.get(key) or 0 for one in cell.finished) for key in _SUMS},
    }


def _mean_cost(costs: Sequence[Json]) -> Json:
    names = ("rollouts", "evaluation_rollouts", *_SUMS)
    if not costs:
        return {**dict.fromkeys(names), "rollouts_by_purpose": {}}
    purposes = sorted({name for cost in costs for name in cost["rollouts_by_purpose"]})
    return {
        **{name: sum(cost[name] for cost in costs) / len(costs) for name in names},
        "rollouts_by_purpose": {
            name: sum(c["rollouts_by_purpose"].get(name, 0) for c in costs) / len(costs)
            for name in purposes
        },
    }


def _scores(suite: SuiteConfig, cells: Sequence[Cell], base: _Seeds | None) -> Json:
    """Held-out figures over the seeds that are finished; all None where none is."""
    whole = samples_of(cells)
    if whole is None:
        names = ("score", "interval", "score_all", "gain", "gain_interval")
        nothing = dict.fromkeys((*names, "probability_of_improvement", "plain", "plain_interval"))
        return {**nothing, "by_seed": {}, "by_stratum": {}}
    samples, seeds = whole.focused(suite.focus), [cell.row.seed for cell in cells]
    # A run that took its instruction over was not evaluated under the suite's own.
    plain = None if cells[0].row.takes_instruction else samples_of(cells, plain=True)
    plain = plain and plain.focused(suite.focus)
    found: Json = {
        "score": float(samples.rewards.mean()),
        "interval": interval(samples),
        "score_all": float(whole.rewards.mean()),
        "by_seed": {
            str(seed): float(row.mean()) for seed, row in zip(seeds, samples.rewards, strict=True)
        },
        "by_stratum": whole.by_stratum(),
        "plain": None if plain is None else float(plain.rewards.mean()),
        "plain_interval": None if plain is None else interval(plain),
    }
    return {**found, **_against(suite, cells, samples, base)}


def _against(
    suite: SuiteConfig, cells: Sequence[Cell], samples: Samples, base: _Seeds | None
) -> Json:
    """Gain over the baseline, on the seeds that both have."""
    nothing: Json = {"gain": None, "gain_interval": None, "probability_of_improvement": None}
    if base is None or cells[0].row.entry.key == slug(suite.baseline):
        return nothing
    mine = [cell.row.seed for cell in cells]
    both = [seed for seed in mine if seed in base.seeds]
    if not both:
        return nothing
    ours = samples.of([mine.index(seed) for seed in both])
    theirs = base.samples.of([base.seeds.index(seed) for seed in both]).focused(suite.focus)
    found = gain(ours, theirs)
    if found is None:
        return nothing
    return {
        "gain": found[0],
        "gain_interval": found[1],
        "probability_of_improvement": probability_of_improvement(ours, theirs),
    }


def samples_of(cells: Sequence[Cell], plain: bool = False) -> Samples | None:
    """The held-out rewards of finished cells, a seed a row; None where there is none.

    Args:
        plain: under the initial instruction, instead of the best one.
    """
    read = [_rewards(cell.finished[-1], plain) for cell in cells if cell.state == State.DONE]
    if not read:
        return None
    if len({len(rewards) for rewards, _, _ in read}) > 1:
        raise ConfigError(
            f"{cells[0].row.entry.key}: its seeds were tested on different numbers of questions; "
            "expected a test split of the same size for every seed"
        )
    rewards, questions, strata = (np.array(part) for part in zip(*read, strict=True))
    return Samples(rewards.astype(float), questions, strata)


def _rewards(stage: Finished, plain: bool) -> tuple[list[float], list[str], list[str]]:
    """Rewards, ids and strata of a run's test questions after it ended."""
    run = RunDir.open(stage.folder)
    evaluated = [event for event in run.read_events() if event["kind"] == "evaluated"]
    step = next((e["step"] for e in reversed(evaluated) if e.get("when") == "after"), None)
    if step is None:
        raise ConfigError(
            f"{stage.folder}: was not evaluated after its end; remove the folder, and run it again"
        )
    rows = run.read_trajectories(step, "evaluate_plain") if plain else []
    rows = rows or run.read_trajectories(step, "evaluate_after")
    tasks = [row["task"] for row in rows]
    return (
        [row["reward"] for row in rows],
        [task["id"] for task in tasks],
        [task["stratum"] for task in tasks],
    )


def _strata(samples: Samples) -> dict[str, int]:
    counts = Counter(samples.strata[0].tolist())
    return {name: counts[name] for name in sorted(counts) if name}


def verdict(summary: Mapping[str, Any]) -> str:
    """One sentence: what our methods gained over the baseline, and what that is worth."""
    rows = {row["name"]: row for row in summary["methods"]}
    baseline = rows[summary["baseline"]]
    others = [row for row in rows.values() if row.get("gain") is not None]
    shown = [row for row in others if row["group"] == "ours"]
    if baseline["score"] is None or not others:
        return "No comparison yet: too few runs are finished."
    shown = shown or [max(others, key=lambda row: row["gain"])]
    shares = summary["measure"] == EXACT_MATCH
    clauses = [_standing(row, baseline["label"], shares) for row in shown]
    paired = {len(row["by_seed"].keys() & baseline["by_seed"].keys()) for row in shown}
    over = " to ".join(map(str, sorted({min(paired), max(paired)})))
    what = summary["measure"]
    if summary["focus"]:
        what += f" on the strata {summary['focus']}…"
    return (
        f"{'; '.join(clauses)}: held-out {what} over {over} seed{'s' * (over != '1')}, at a "
        f"budget of {summary['budget']:,} policy rollouts."
    )


def _standing(row: Json, baseline: str, shares: bool) -> str:
    """ "INSPO ends 64.9 points (95 %: 59.2 to 70.4) above Search-R1"."""
    low, high = row["gain_interval"]
    if low <= 0 <= high:
        ends = " to ".join(_size(end, shares, signed=True) for end in (low, high))
        return f"{row['label']} cannot be told apart from {baseline} (95 %: {ends})"
    below = high < 0
    ends = sorted((abs(low), abs(high)))
    size = _size(abs(row["gain"]), shares) + (" points" if shares else "")
    told = " to ".join(_size(end, shares) for end in ends)
    return f"{row['label']} ends {size} (95 %: {told}) {'below' if below else 'above'} {baseline}"


def _size(value: float, shares: bool, signed: bool = False) -> str:
    text = f"{value * 100:+.1f}" if shares else f"{value:+.3f}"
    return text.replace("-", "−") if signed else text.lstrip("+")
