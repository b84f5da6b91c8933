"""The demos: suites that ship, their folder, a stop, and the tables that they end with."""

from pathlib import Path

from cotune.config.run_file import RunConfig
from cotune.experiments.compare import running
from cotune.experiments.compare.running import cells_of, demo
from cotune.experiments.compare.suite_file import load_suite
from tests.experiments.compare.folders import HALF, Start, finish, output_of

SUITE = Path(running.__file__).parent / "suites/demo.yaml"


def run(folder: Path, seed: int = 0) -> str:
    return output_of(lambda console: demo(folder, seed, console))


def good(config: RunConfig, words: tuple[str, ...]) -> int:
    """A finished run."""
    rollouts = {"train": config.training.rollout_budget or 0}
    strata = ("long a", "short a", "long b", "short b")
    figures = {"em_n": len(strata)}
    text = "Use \\boxed{}."
    finish(config, HALF, rollouts, instruction=text, strata=strata, figures=figures)
    return 0


def test_rows_differ_in_strategy_and_its_learning_rate_alone() -> None:
    suite, base = load_suite(SUITE, ["seeds=[4]"])
    alone = [row.planned[0] for row in cells_of(suite, base) if len(row.stages) == 1]
    configs = {config.strategy.kind: config for config in alone}
    grpo, inspo = (configs[kind].model_dump(mode="json") for kind in ("static", "inspo"))
    for raw in (grpo, inspo):
        assert raw["training"].pop("learning_rate") > 0
    assert {key for key in grpo if grpo[key] != inspo[key]} == {"name", "output", "strategy", "llm"}
    assert {config.seed for config in alone} == {4}
    assert "not evidence about pretrained models" in suite.caption


def test_a_demo_is_a_suite_and_is_shown_again(tmp_path: Path, start: Start) -> None:
    processes, folder = start(good), tmp_path / "demo"
    out = run(folder)
    assert "policy rollouts each; proposals by offline rules" in out
    assert f"report: {folder / 'report.html'}" in out
    started = sum(len(row.stages) for row in cells_of(*load_suite(SUITE)))
    assert len(processes.started) == started
    assert out.splitlines()[-1] == run(folder).splitlines()[-1]
    assert len(processes.started) == started
    run(folder, 1)
    assert len(processes.started) == 2 * started
