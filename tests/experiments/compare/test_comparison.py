"""What the demos share: arms, progress, the folder, the summary; whole demos are `make demo`."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.config.run_file import parse_config
from cotune.errors import ConfigError, Stopped
from cotune.experiments.compare import comparison
from cotune.experiments.compare.arms import Arm, ArmFailed, run_arms
from cotune.experiments.compare.comparison import Comparison, ahead, cost_table
from cotune.experiments.compare.demo import Demo
from cotune.experiments.compare.demo_p2o import DemoP2O
from cotune.run.run_dir import RunDir
from tests.experiments.report.pages import printed

BOTH = pytest.mark.parametrize("demo", [Demo(), DemoP2O()], ids=lambda demo: demo.name)


@BOTH
def test_arms_differ_in_strategy_and_its_learning_rate_alone(demo: Comparison) -> None:
    baseline, method = demo.arms(Path("somewhere"), seed=4)
    one, other = (a.config.model_dump(mode="json") for a in (baseline, method))
    for arm in (one, other):
        assert arm["training"].pop("learning_rate") > 0
    differ = {key for key in one if one[key] != other[key]}
    assert differ == {"name", "output", "strategy", "llm"}
    assert baseline.config.strategy.kind == "static"
    assert method.name == demo.method == method.config.strategy.kind
    assert baseline.config.training.rollout_budget == method.config.training.rollout_budget
    assert baseline.config.seed == method.config.seed == 4


@BOTH
def test_an_earlier_demo_is_renamed_and_nothing_else_is_touched(
    demo: Comparison, tmp_path: Path
) -> None:
    console = Console(file=io.StringIO())
    folder = tmp_path / "demo"
    folder.mkdir()
    demo.set_aside(folder, console)
    (folder / f"{demo.method}.yaml").write_text("name: earlier")
    demo.set_aside(folder, console)
    assert not folder.exists()
    assert (tmp_path / "demo-1" / f"{demo.method}.yaml").read_text() == "name: earlier"
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        demo.set_aside(folder, console)
    assert (folder / "thesis.tex").read_text() == "mine"


@BOTH
def test_a_stop_says_how_to_go_on(
    demo: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run_arms", stopped)
    folder = tmp_path / "demo"
    with pytest.raises(Stopped) as said:
        demo.run(folder, 0, Console(file=io.StringIO()))
    first, second = demo.changes
    assert str(said.value) == (
        f"stopped; start again with cotune {demo.name}, or go on with "
        f"cotune resume {folder / first} and cotune resume {folder / second}"
    )


@BOTH
def test_summary_of_an_unfinished_arm_is_refused(demo: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no summary"):
        demo.summarise(tmp_path, demo.arms(tmp_path, 0))


@BOTH
def test_progress_before_the_first_line_counts_steps_within_the_budget(
    demo: Comparison, tmp_path: Path
) -> None:
    training = demo.arms(tmp_path, 0)[0].config.training
    batch = training.questions_per_step * training.group_size
    assert training.rollout_budget is not None
    text = printed(demo.progress_table(demo.arms(tmp_path, 0)))
    assert f"0/{min(training.steps, training.rollout_budget // batch)}" in text
    assert "starting" in text


def test_notices_are_shown_as_text(tmp_path: Path) -> None:
    demo = Demo()
    arm = demo.arms(tmp_path, 0)[-1]
    RunDir.create(arm.folder, {}).event("notice", 1, text="an [red]endpoint[/] said\n[/no]")
    assert "an [red]endpoint[/] said [/no]" in printed(demo.progress_table([arm]))


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


@pytest.mark.parametrize(
    ("method", "baseline", "words"),
    [
        (0.75, 0.5, "25 points above"),
        (0.4, 0.5, "10 points below"),
        (0.51, 0.5, "1 point above"),
        (0.502, 0.5, "level with"),
    ],
)
def test_ahead(method: float, baseline: float, words: str) -> None:
    assert ahead(method, baseline) == words


def test_costs_are_shown_for_the_purposes_that_were_paid_for() -> None:
    def arm(**rollouts: int) -> dict[str, Any]:
        return {"policy_rollouts": rollouts, "generated_tokens": 1234, "llm_calls": 3, "seconds": 5}

    one = arm(train=2000, verify=0, evolve=0, evaluate=30)
    text = printed(cost_table({"arms": {"a": one, "b": arm(train=1500, evolve=480, evaluate=30)}}))
    columns = "train evolve evaluation generated tokens LLM calls seconds"
    assert " ".join(text.splitlines()[1].replace("┃", " ").split()) == columns
    assert "2,000" in text
    assert "480" in text
