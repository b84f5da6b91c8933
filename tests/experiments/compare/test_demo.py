"""The demo's summary and tables, from scripted arms."""

from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.arms import hops
from cotune.experiments.compare.demo import Demo
from cotune.run.run_dir import read_summary, write_summary
from tests.experiments.report.pages import printed


def figures(em: float) -> dict[str, Any]:
    strata = {"1 hop": em, "2 hops": em, "3 hops": em}
    return {
        "em": em,
        "em_by_stratum": strata,
        "em_before": 0.25,
        "em_before_by_stratum": dict.fromkeys(strata, 0.25),
        "em_initial_instruction": em,
        "em_initial_instruction_by_stratum": strata,
        "policy_rollouts": {"train": 10, "verify": 2, "evaluate": 6},
        "generated_tokens": 100,
        "llm_calls": 3,
        "seconds": 5.0,
        "best_instruction": f"be {em}",
    }


@pytest.mark.parametrize(("inspo", "words"), [(0.75, "25 points above"), (0.4, "10 points below")])
def test_summary_says_what_came_out_whichever_way(tmp_path: Path, inspo: float, words: str) -> None:
    demo = Demo()
    arms = demo.arms(tmp_path, 0)
    for arm, em in zip(arms, (0.5, inspo), strict=True):
        arm.folder.mkdir()
        write_summary(arm.folder, {"arms": {arm.name: figures(em)}})
    summary = demo.summarise(tmp_path, arms)
    assert read_summary(tmp_path) == summary
    assert words in summary["verdict"]
    assert summary["best_instruction"] == f"be {inspo}"
    assert demo.prompts(summary) == [f"best instruction: be {inspo}"]
    assert summary["arms"]["inspo"]["em_by_hops"] == {"1": inspo, "2": inspo, "3": inspo}
    assert summary["llm"] == "offline rules (reflected)"
    assert "not evidence" in summary["caption"]
    assert f"{inspo:.2f}" in printed(demo.result_table(summary))


def test_hops() -> None:
    assert hops({"1 hop": 0.5, "3 hops": 0.25}) == {"1": 0.5, "3": 0.25}
