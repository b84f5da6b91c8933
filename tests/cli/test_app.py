"""The command line as a person uses it: whole runs, a stop in the middle, several processes."""

import shlex
import subprocess
from importlib.metadata import version
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from typer.testing import CliRunner

from cotune.cli import app as cli
from cotune.errors import BudgetError, ConfigError, CotuneError, Stopped
from cotune.run.run_dir import RunDir
from tests.command_line import Command
from tests.engines.trl.kills import KILLED_RUN
from tests.forked import run_module
from tests.policy.tiny import small_policy
from tests.run_files import tiny, write


def cotune(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return run_module("cotune", *arguments)


def run_file(folder: Path, changes: dict[str, Any] | None = None) -> Path:
    """Write a tiny run file whose policy and turns are small, too; its output is `folder`/out."""
    small = {"policy": {"path": small_policy()}, "limits": {"turns": 2, "turn_tokens": 8}}
    return write(folder / "run.yaml", tiny(folder / "out", {**small, **(changes or {})}))


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("training.steps is 0\n expected 1"), 2, "training.steps is 0 expected 1"),
        (BudgetError("too dear"), 1, "too dear"),
        (Stopped("stopped; resume with: cotune resume x"), 130, "stopped; resume with: cotune resume x"),
    ],
)  # fmt: skip
def test_errors_are_one_line(
    error: CotuneError,
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    run_command: Command,
) -> None:
    monkeypatch.setattr(cli, "app", mock.Mock(side_effect=error))
    assert run_command() == (status, "", f"cotune: {text}\n")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_command() == (status, "", f"cotune (rank 1): {text}\n")


def test_a_closed_standard_output_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "app", lambda: print("…"))
    stdout = TextIOWrapper(BytesIO(), "latin-1")
    for stream in (None, stdout):
        monkeypatch.setattr("sys.stdout", stream)
        cli.main()
    assert stdout.buffer.getvalue() == b"?\n"  # type: ignore[attr-defined]


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"cotune {version('cotune')}\n")


def test_every_command_is_in_a_group_and_has_an_example_that_it_takes() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert command.rich_help_panel != "Commands"
        program, subcommand, *words = shlex.split(command.epilog.removeprefix("Example: "))
        assert (program, subcommand) == ("cotune", name)
        command.make_context(name, words[: words.index(">")] if ">" in words else words)


@pytest.mark.slow
def test_a_run_from_plan_to_report_and_further(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = run_file(tmp_path)
    options = ("--set", "training.steps=2", "--set", "strategy.population_size=2")
    planned = cotune("plan", file, *options)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert f"{2 * 4 * 2:,} " in planned.stdout
    assert not out.exists()

    trained = cotune("train", file, *options)
    assert (trained.returncode, trained.stderr) == (0, "")
    assert "step 2/2" in trained.stdout
    run = RunDir.open(out)
    assert run.read_config()["training"]["steps"] == 2
    assert run.read_config()["strategy"]["population_size"] == 2
    assert [row["step"] for row in run.read_metrics()] == [1, 2]
    summary = run.read_summary()
    assert summary is not None
    arm = summary["arms"]["inspo"]
    assert run.report_path.stat().st_size > 1000
    best = (run.best_path / "instruction.txt").read_text(encoding="utf-8")
    assert best == summary["best_instruction"] + "\n"

    evaluated = cotune("evaluate", out, "--split", "test")
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    (greedy, *_) = (s for s in evaluated.stdout.splitlines() if s.startswith("  greedy"))
    assert f"{100 * arm['em']:.1f} % (" in greedy
    run.report_path.unlink()  # as a kill just before it leaves the run
    resumed = cotune("resume", out)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert resumed.stdout.endswith(f"report: {run.report_path}\n")
    run.report_path.unlink()
    assert cotune("report", out).stdout.strip() == str(run.report_path)
    assert run.report_path.is_file()

    changes = ("--set", "training.steps=3", "--set", "llm={kind: rules}")
    extended = cotune("resume", out, *changes, "--quiet")
    assert (extended.returncode, extended.stdout, extended.stderr) == (0, "", "")
    run = RunDir.open(out)
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    (event,) = [row for row in run.read_events() if row["kind"] == "resumed"]
    assert event["from_step"] == 2
    assert event["changed"]["training.steps"] == [2, 3]
    assert event["changed"]["llm.kind"] is None
    assert (run.read_summary() or {})["arms"]["inspo"]["steps"] == 3


@pytest.mark.slow
def test_control_c_says_how_to_go_on_and_resume_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = run_file(tmp_path, {"name": "odd \x1b[2J name", "training": {"steps": 3}})
    stopped = run_module(KILLED_RUN, "ctrl-c", 2, "train", file)
    assert stopped.returncode == 130
    assert stopped.stderr == f"cotune: stopped; resume with: cotune resume {out}\n"

    resumed = cotune("resume", out)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    run = RunDir.open(out)
    assert run.attempt == 2
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    assert run.read_summary() is not None
    *lines, policy, report = resumed.stdout.splitlines()
    headline = "odd [2J name: inspo on geo, seed 0; proposals by offline rules"
    assert any(line.startswith(headline) for line in lines)
    assert (policy, report) == (f"best policy: {out / 'best'}", f"report: {out / 'report.html'}")
