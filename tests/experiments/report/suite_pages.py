"""A suite's folder as `cotune compare` leaves it: summary.json and small run folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotune.run.record import Record

STRATA = ("1 hop", "2 hops", "3 hops")
COSTS: dict[str, float] = {
    "rollouts": 3088, "evaluation_rollouts": 1200, "generated_tokens": 165000, "llm_calls": 11,
    "money": 0.0, "seconds": 110.0,
}  # fmt: skip
PLAIN = "Answer the question. You can search by writing <search> query </search>."


def stage(path: Path, steps: int, scores: tuple[float, float], *, verify: bool = False) -> Record:
    """A run folder of `steps` steps whose reward goes from the first to the second of `scores`.

    Each step pays for 96 training rollouts, every eighth for 48 verifications, too, every fourth is validated.
    """
    run = Record.create(path, {"name": path.name, "strategy": {"kind": "static"}})
    run.begin_attempt(None)
    for step in range(1, steps + 1):
        run.step = step
        if verify and step % 8 == 0:
            run.count("verify", 48, 900)
        run.count("train", 96, 2000)
        run.metrics(step, {"reward_mean": scores[0] + (scores[1] - scores[0]) * step / steps})
        if step % 4 == 0:
            run.count("evaluate", 30, 500)
    run.write_summary({"name": path.name, "arms": {}, "best_instruction": PLAIN})
    run.report_path.write_text("<!DOCTYPE html><title>run</title>", encoding="utf-8")
    return run


def method(name: str, group: str, mean: float | None, **more: Any) -> dict[str, Any]:
    """A method's entry of summary.json with plausible numbers; `more` replaces some."""
    has_mean = mean is not None
    by_stratum = dict(zip(STRATA, (0.98, mean, mean), strict=True)) if has_mean else {}
    by_seed = more.get("by_seed", {"0": mean, "1": mean} if has_mean else {})
    if has_mean:
        more = {
            "score": spread(mean, max(0.0, mean - 0.05), min(1.0, mean + 0.03), by_stratum),
            "gain": spread(mean - 0.33, mean - 0.39, mean - 0.27),
            "plain": spread(0.33, 0.27, 0.38),
            "instruction": PLAIN, "costs": COSTS,
        } | more  # fmt: skip
    return {
        "name": name, "label": name, "group": group, "compute": "1x", "status": "ok", "problem": "",
        "by_seed": by_seed, "finished": len(by_seed), "runs": {}, **more,
    }  # fmt: skip


def spread(mean: float, low: float, high: float, strata: dict[str, float] | None = None) -> Any:
    """A mean with its interval."""
    return {"mean": mean, "interval": [low, high], "by_stratum": strata or {}}


def summary(*methods: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A suite's summary.json; `more` replaces what stands around the methods.

    Without a row named "search-r1" the first method is the baseline.
    """
    names = [str(row["name"]) for row in methods]
    baseline = "search-r1" if "search-r1" in names else names[0]
    alone = {"gain": None}
    return {
        "schema_version": 1, "kind": "suite", "name": "table1-geo",
        "caption": "A check of the mechanisms on a bundled policy.",
        "baseline": baseline, "focus": None,
        "quadrant_samples": 0,
        "seeds": [0, 1], "budget": 3120, "measure": "exact match",
        "strata": dict.fromkeys(STRATA, 100), "n": 300, "environment": "geo",
        "policy": "bundled:geo", "llm": "offline rules", "verdict": "INSPO beat Search-R1.",
        "created": 1795276637.5, "methods": [{**row, **(alone if row["name"] == baseline else {})} for row in methods],
    } | more  # fmt: skip


def build_suite(folder: Path) -> dict[str, Any]:
    """A suite of a baseline, a prompt-only and a staged method and INSPO, and its summary."""
    better = f"{PLAIN} Search for one entity at a time."
    stages: dict[str, list[tuple[str, int, tuple[float, float], bool]]] = {
        "search-r1": [("train", 16, (0.25, 0.33), False)],
        "prompt-first": [("prompt", 8, (0.25, 0.6), True), ("train", 8, (0.6, 0.97), False)],
        "inspo": [("train", 16, (0.25, 0.97), True)],
    }
    runs: dict[str, dict[str, list[str]]] = {}
    for seed in ("0", "1"):
        for name, parts in stages.items():
            for part, steps, scores, verify in parts:
                path = f"{name}/seed-{seed}/{part}"
                stage(folder / path, steps, scores, verify=verify)
                runs.setdefault(name, {}).setdefault(seed, []).append(path)
    return summary(
        method("direct", "prompt", 0.1, label="Direct", costs=COSTS | {"rollouts": 0}),
        method("search-r1", "trained", 0.33, label="Search-R1", runs=runs["search-r1"]),
        method(
            "prompt-first", "staged", 0.97, label="Prompt, then GRPO", runs=runs["prompt-first"]
        ),
        method("inspo", "ours", 0.976, label="INSPO", instruction=better, runs=runs["inspo"]),
    )
