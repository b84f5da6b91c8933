"""`cotune init`: the starters are files that work."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cotune.cli.app import app
from cotune.cli.plan import plan
from cotune.cli.starter import KINDS, OFFLINE, write_starter
from cotune.cli.train import train
from cotune.config.cost import plan_run
from cotune.config.run_file import load_config
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from cotune.utils.importing import import_object


@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_is_a_run_file_that_can_be_planned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_starter(kind, tmp_path / "new" / "agent")
    assert paths[0].name == "run.yaml"
    assert all(path.is_file() for path in paths)
    monkeypatch.chdir(tmp_path / "new" / "agent")
    config = load_config("run.yaml")
    assert config.environment.kind == kind.replace("-", "_")
    assert plan_run(config).rollouts["train"] == 50 * 8 * 5
    for reward in config.rewards:
        assert callable(import_object(reward.function, "rewards"))

    out = io.StringIO()
    plan(Path("run.yaml"), Console(file=out, width=200), (), "400,50,90")
    assert "2,000" in out.getvalue()


def test_the_rewards_of_the_starters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_starter("single-turn", tmp_path / "single")
    monkeypatch.chdir(tmp_path / "single")
    exact = import_object("rewards.py:exact", "rewards")
    assert exact(["12.", " 12\n", "about 12"], answer=["12"] * 3) == [1.0, 1.0, 0.0]
    write_starter("tools", tmp_path / "tools")
    monkeypatch.chdir(tmp_path / "tools")
    exact = import_object("rewards.py:exact", "rewards")
    turns = [["I call it: 49.00", "No idea"], ["7", "It costs 49.00 in all"], ["so 49"]]
    completions = [[{"role": "assistant", "content": text} for text in turn] for turn in turns]
    assert exact(completions, answer=["49.00"] * 3) == [0.0, 1.0, 1.0]
    completions = [
        [{"role": "assistant", "content": text}] for text in ("$1,620.00 in all.", "-1620", "620")
    ]
    assert exact(completions, answer=["1620"] * 3) == [1.0, 0.0, 0.0]
    brief = import_object("rewards.py:brief", "rewards")
    assert brief([[], [{"content": "x" * 60}, {"content": "x" * 40}]]) == [1.0, 0.75]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"rewards.py: exists already; give another folder"):
        write_starter("tools", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rewards.py"]
    with pytest.raises(ConfigError, match="is a file; choose another folder"):
        write_starter("tools", tmp_path / "rewards.py")


@pytest.mark.slow
def test_the_offline_starter_trains_where_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["init", str(tmp_path / "first"), "--offline"]
    assert "cotune train run.yaml" in CliRunner().invoke(app, arguments).stdout
    monkeypatch.chdir(tmp_path / "first")
    for name in ("OPENAI_API_KEY", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    steps = "training.steps=2 training.questions_per_step=4 training.micro_batch_size=16"
    sizes = "strategy.evolve_every=1 strategy.evolve_until=2 strategy.verification_tasks=2"
    smaller = "dataset.test=2 dataset.validation=2 evaluation.every=0 threads=1"
    run = RunDir.open(
        train(
            Path("run.yaml"), Console(quiet=True), assignments=f"{steps} {sizes} {smaller}".split()
        )
    )
    births = [row for row in run.read_events() if row["kind"] == "instruction_born"]
    assert {row["origin"] for row in births} == {"initial", "bank"}
    summary = run.read_summary() or {}
    assert summary["llm"] == "a bank of written texts (instructions.txt), not an LLM"
    (arm,) = summary["arms"].values()
    assert (arm["llm_calls"], arm["steps"]) == (0, 2)
    card = (run.best_path / "README.md").read_text(encoding="utf-8")
    assert "Proposer: bank." in card
    assert "bank of written texts" in (run.path / "report.html").read_text(encoding="utf-8")


def test_the_offline_starter_holds_together(cwd: Path) -> None:
    paths = write_starter(OFFLINE, cwd)
    names = {path.name for path in paths}
    assert {"README.md", "instructions.txt", "questions.jsonl", "rewards.py"} <= names
    boxed = import_object("rewards.py:boxed", "rewards")
    completions = ["\\boxed{1}, so \\boxed{12}", "12", "\\boxed{ 12 }"]
    assert boxed(completions, answer=["12"] * 3) == [1.0, 0.0, 1.0]
    for options in (["--offline", "--kind", "tools"], []):
        result = CliRunner().invoke(app, ["init", "x", *options])
        assert isinstance(result.exception, ConfigError)
        assert str(result.exception).startswith("expected either --kind, with single-turn: ")
    assert not Path("x").exists()
