"""The P²O demo's opening, progress, summary and tables, from scripted arms."""

from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.arms import Arm
from cotune.experiments.compare.demo_p2o import DemoP2O, scaled_down
from cotune.run.run_dir import RunDir, read_summary, write_summary
from cotune.worlds.arithmetic_world import HARD, KINDS
from tests.experiments.report.hint_runs import phase
from tests.experiments.report.pages import printed
from tests.methods.p2o.hint_fakes import Author, Policy, one_keyword_each

DEMO = DemoP2O()


def figures(easy: float, hard: float, evolve: int) -> dict[str, Any]:
    strata = {f"short {kind}": easy for kind in KINDS} | dict.fromkeys(HARD, hard)
    return {
        "em": (easy + hard) / 2,
        "em_by_stratum": strata,
        "em_before": 0.25,
        "em_before_by_stratum": dict.fromkeys(strata, 0.25),
        "accuracy_hard": hard,
        "accuracy_hard_before": 0.015625,
        "policy_rollouts": {"train": 7000 - evolve, "verify": 0, "evolve": evolve, "evaluate": 800},
        "generated_tokens": 100,
        "llm_calls": 3,
        "seconds": 5.0,
        "best_instruction": "Box it.",
    }


def scripted(folder: Path, hard: float) -> list[Arm]:
    """Both arms with their results; the second one with a real phase of hint evolution."""
    arms = DEMO.arms(folder, 0)
    for arm, (accuracy, evolve) in zip(arms, ((0.125, 0), (hard, 1000)), strict=True):
        run = RunDir.create(arm.folder, {"name": arm.name})
        write_summary(arm.folder, {"arms": {arm.name: figures(1.0, accuracy, evolve)}})
        if evolve:
            phase(run, 9, Policy(), Author(one_keyword_each))
    return arms


def test_the_opening_shows_the_papers_numbers_beside_the_demos() -> None:
    config = DEMO.arms(Path("x"), 0)[-1].config
    sizes = scaled_down(config)
    assert {name: size["paper"] for name, size in sizes.items()} == {
        "hard_set_min_count": 100,
        "dev_size": 300,
        "budget": 11040,
    }
    assert all(size["here"] < size["paper"] for size in sizes.values())
    text = " ".join(DEMO.opening(config))
    assert f"hard_set_min_count {sizes['hard_set_min_count']['here']} (paper: 100)" in text
    assert f"dev_size {sizes['dev_size']['here']} (paper: 300)" in text
    budget = f"budget {sizes['budget']['here']:,} (paper: 11,040, its formula at dev_size 300)"
    assert budget in text


@pytest.mark.parametrize(
    ("hard", "words"), [(0.625, "50 points above GRPO"), (0.0625, "6 points below GRPO")]
)
def test_summary_says_what_came_out_whichever_way(tmp_path: Path, hard: float, words: str) -> None:
    summary = DEMO.summarise(tmp_path, scripted(tmp_path, hard))
    assert read_summary(tmp_path) == summary
    assert words in summary["verdict"]
    assert "7,000 and 7,000 policy rollouts" in summary["verdict"]
    assert summary["scaled_down"]["dev_size"]["paper"] == 300
    grpo, p2o = summary["arms"]["grpo"], summary["arms"]["p2o"]
    assert (grpo["accuracy_hard"], p2o["accuracy_hard"]) == (0.125, hard)
    assert {*figures(1, 1, 1), "folder", "best_hints"} == p2o.keys() == grpo.keys()
    assert grpo["best_hints"] == []
    table = printed(DEMO.result_table(summary)).splitlines()
    assert table[1].replace("┃", " ").split() == [
        "all", "hard", "add", "subtract", "multiply", "word", "problem",
    ]  # fmt: skip
    assert table[-1].replace("│", " ").split() == [
        "p2o,", "after", f"{(1 + hard) / 2:.2f}", *[f"{hard:.2f}"] * 5,
    ]  # fmt: skip


def test_the_best_hints_of_the_last_phase_are_told(tmp_path: Path) -> None:
    arms = scripted(tmp_path, 0.5)
    summary = DEMO.summarise(tmp_path, arms)
    best = summary["arms"]["p2o"]["best_hints"]
    events = arms[-1].events()
    means = {e["text"]: e["mean_dev_score"] for e in events if e["kind"] == "hint_accepted"}
    assert 0 < len(best) <= 5
    assert [h["mean_dev_score"] for h in best] == sorted(means.values(), reverse=True)[: len(best)]
    assert all(means[h["text"]] == h["mean_dev_score"] for h in best)
    cover = next(e for e in events if e["kind"] == "hint_phase_ended")["covering_texts"]
    assert [h["in_cover"] for h in best] == [h["text"] in cover for h in best]
    said = DEMO.prompts(summary)
    assert "mean dev scores" in said[0]
    assert said[1] == f"  {best[0]['mean_dev_score']:.2f}  {best[0]['text']}"
    summary["arms"]["p2o"]["best_hints"] = []
    assert DEMO.prompts(summary) == ["no hint was accepted"]


def test_progress_tells_the_hard_questions_and_the_phase(tmp_path: Path) -> None:
    grpo, p2o = DEMO.arms(tmp_path, 0)
    run = RunDir.create(p2o.folder, {})
    assert DEMO.standing(p2o) == "epoch 1"
    mined = {"seen": 192, "newly_hard": 61, "graduated": 0, "solved_by_hint": 0}
    run.event("hard_samples", 9, epoch=1, hard=61, **mined)
    assert DEMO.standing(p2o) == "epoch 2: 61 hard"
    spent = {"evaluations": 240, "budget": 400, "hints": 8, "best_mean_dev_score": 0.63}
    run.event("hint_progress", 9, **spent)
    assert DEMO.standing(p2o) == "epoch 2: 61 hard; hints: 240/400 evaluations, 7 hints, best 0.63"
    run.event("hard_samples", 17, epoch=2, hard=12, **mined)
    assert DEMO.standing(p2o) == "epoch 3: 12 hard"
    run.event("notice", 17, text="12 hard questions, hard_set_min_count is 24: no hints")
    run.metrics(17, {"reward_mean": 0.5, "zero_advantage_share": 0.25})
    assert DEMO.progress(p2o)[3:] == (
        "25%",
        "epoch 3: 12 hard",
        "12 hard questions, hard_set_min_count is 24: no hints",
    )
    assert DEMO.standing(grpo) == ""
