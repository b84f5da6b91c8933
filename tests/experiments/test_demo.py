"""The demo's arms, summary and tables; the whole demo is `make demo`."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.config import parse_config
from cotune.contracts import ConfigError
from cotune.experiments.arms import Arm, ArmFailed, hops, run_arms
from cotune.experiments.demo import (
    demo_arms,
    progress_table,
    result_table,
    set_aside,
    summarise,
)
from cotune.run_dir import write_summary


def printed(thing: Any) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(thing)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


def test_arms_differ_in_strategy_alone() -> None:
    static, inspo = demo_arms(Path("somewhere"), seed=4)
    assert (static.name, inspo.name) == ("static", "inspo")
    one, other = (a.config.model_dump(mode="json") for a in (static, inspo))
    differ = {key for key in one if one[key] != other[key]}
    assert differ == {"name", "output", "strategy", "llm"}
    assert static.config.training.rollout_budget == inspo.config.training.rollout_budget
    assert static.config.seed == inspo.config.seed == 4


def test_an_earlier_demo_is_renamed_and_nothing_else_is_touched(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    folder = tmp_path / "demo"
    folder.mkdir()
    set_aside(folder, console)
    (folder / "inspo.yaml").write_text("name: inspo")
    set_aside(folder, console)
    assert not folder.exists()
    assert (tmp_path / "demo-1" / "inspo.yaml").read_text() == "name: inspo"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        set_aside(folder, console)
    assert (folder / "thesis.tex").read_text() == "mine"


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
    arms = demo_arms(tmp_path, 0)
    for arm, em in zip(arms, (0.5, inspo), strict=True):
        arm.folder.mkdir()
        write_summary(arm.folder, {"arms": {arm.name: figures(em)}})
    summary = summarise(tmp_path, arms)
    assert words in summary["verdict"]
    assert summary["best_instruction"] == f"be {inspo}"
    assert summary["arms"]["inspo"]["em_by_hops"] == {"1": inspo, "2": inspo, "3": inspo}
    assert "no" in summary["caption"] or "not" in summary["caption"]
    assert f"{inspo:.2f}" in printed(result_table(summary))


def test_summary_of_an_unfinished_arm_is_refused(tmp_path: Path) -> None:
    arms = demo_arms(tmp_path, 0)
    with pytest.raises(ConfigError, match="holds no summary"):
        summarise(tmp_path, arms)


def test_a_failing_arm_is_named_with_its_last_line(tmp_path: Path) -> None:
    config = parse_config(
        {
            "output": str(tmp_path / "run"),
            "environment": {"kind": "geo"},
            "strategy": {"kind": "static"},
            "policy": {"path": str(tmp_path / "nowhere")},
        },
        "test",
    )
    with pytest.raises(ArmFailed, match=r"the broken run ended with status 2: .*policy\.path"):
        run_arms([Arm("broken", config)], at_once=1, watch=lambda arms: None, every=0.1)


def test_progress_before_the_first_line(tmp_path: Path) -> None:
    text = printed(progress_table(demo_arms(tmp_path, 0), steps=7))
    assert "0/7" in text
    assert "starting" in text


def test_hops() -> None:
    assert hops({"1 hop": 0.5, "3 hops": 0.25}) == {"1": 0.5, "3": 0.25}
