"""A suite's folder as `cotune compare` leaves it: summary.json and small run folders."""

import random
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


def stage(
    path: Path,
    steps: int,
    scores: tuple[float, float],
    *,
    seed: int = 0,
    during: bool = True,
    verify: bool = False,
    instruction: str = PLAIN,
    finish: bool = True,
) -> Record:
    """A run folder of `steps` steps whose score goes from the first to the second of `scores`.

    Each step pays for 96 training rollouts, every eighth for 48 verifications, too; validation
    happens every fourth step and at none if not `during`.
    """
    rng = random.Random(f"{path.name} {seed}")
    run = Record.create(path, {"name": path.name, "strategy": {"kind": "static"}, "seed": seed})
    run.begin_attempt(None)
    run.event("run_started", 0, strategy="static")
    for step in range(1, steps + 1):
        run.step = step
        if verify and step % 8 == 0:
            run.count("verify", 48, 900)
        run.count("train", 96, 2000)
        share = min(1.0, step / steps * 1.4)
        value = scores[0] + (scores[1] - scores[0]) * share
        run.metrics(step, {"reward_mean": min(1.0, max(0.0, value + rng.gauss(0, 0.04)))})
        if during and step % 4 == 0:
            run.count("evaluate", 30, 500)
            run.event("evaluated", step, split="validation", when="during", prompt="best",
                      instruction_id="i0", trained=step, em=value, n=30)  # fmt: skip
    run.event("evaluated", steps + 1, split="test", when="after", prompt="best", trained=steps,
              instruction_id="i0", em=scores[1], n=300)  # fmt: skip
    if finish:
        run.write_summary({"name": path.name, "best_instruction": instruction, "arms": {}})
        run.report_path.write_text("<!DOCTYPE html><title>run</title>", encoding="utf-8")
    return run


def method(name: str, group: str, mean: float | None, **more: Any) -> dict[str, Any]:
    """A method's entry of summary.json with plausible numbers; `more` replaces some."""
    known = mean is not None
    by_stratum = dict(zip(STRATA, (0.98, mean, mean), strict=True)) if known else {}
    by_seed = more.get("by_seed", {"0": mean, "1": mean} if known else {})
    if known:
        more = {
            "score": spread(mean, max(0.0, mean - 0.05), min(1.0, mean + 0.03), by_stratum),
            "gain": spread(mean - 0.33, mean - 0.39, mean - 0.27),
            "plain": spread(0.33, 0.27, 0.38),
            "instruction": PLAIN, "costs": COSTS,
            "rollouts_by_purpose": {"train": 2600, "verify": 488},
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
    names = [str(each["name"]) for each in methods]
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
        "created": 1795276637.5, "methods": [{**each, **(alone if each["name"] == baseline else {})} for each in methods],
    } | more  # fmt: skip


def build_suite(folder: Path, **more: Any) -> dict[str, Any]:
    """A suite of a baseline, a prompt-only and a staged method and INSPO, and its summary."""
    better = f"{PLAIN} Search for one entity at a time."
    runs: dict[str, dict[str, list[str]]] = {}
    for seed in (0, 1):
        stages = {
            "search-r1": [("train", 16, (0.25, 0.33), {})],
            "prompt-first": [
                ("prompt", 8, (0.25, 0.6), {"verify": True, "instruction": better}),
                ("train", 8, (0.6, 0.97), {"instruction": better}),
            ],
            "inspo": [
                ("train", 16, (0.25, 0.97), {"verify": True, "instruction": f"{better} {seed}"})
            ],
        }
        for name, parts in stages.items():
            for part, steps, scores, options in parts:
                path = f"{name}/seed-{seed}/{part}"
                stage(folder / path, steps, scores, seed=seed, **options)
                runs.setdefault(name, {}).setdefault(str(seed), []).append(path)
    return summary(
        method("direct", "prompt", 0.1, label="Direct", costs=COSTS | {"rollouts": 0}, rollouts_by_purpose={}),
        method("search-r1", "trained", 0.33, label="Search-R1",
               runs=runs["search-r1"]),
        method("prompt-first", "staged", 0.97, label="Prompt, then GRPO", instruction=better,
               runs=runs["prompt-first"]),
        method("inspo", "ours", 0.976, label="INSPO", instruction=f"{better} 0",
               runs=runs["inspo"]),
        **more,
    )  # fmt: skip
