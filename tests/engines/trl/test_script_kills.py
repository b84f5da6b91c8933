"""A script that is killed, and run again with resume_from_checkpoint=True, ends as if never killed."""

import signal
import subprocess
from pathlib import Path

import pytest

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import check_that_they_end_alike
from tests.forked import run_module

# Six steps, each saved; every second one is evaluated first, and the second one keeps a policy.
KILLS = [
    ("first step", 1),
    ("weights", 2),
    ("swap", 2),
    ("state", 4),
    ("closing", 7),
    ("report", 7),
]


def script(
    folder: Path, place: str = "nowhere", step: int = 0, *, resume: bool = False
) -> subprocess.CompletedProcess[str]:
    told = "resume" if resume else "begin"
    return run_module("tests.engines.trl.killed_script", place, step, folder, told)


def run_of(folder: Path) -> RunDir:
    return RunDir.open(folder / "checkpoints" / "cotune")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    unbroken, broken = tmp_path_factory.mktemp("unbroken"), tmp_path_factory.mktemp("broken")
    done = script(unbroken)
    assert done.returncode == 0, done.stderr
    for place, step in KILLS:
        done = script(broken, place, step, resume=broken.joinpath("checkpoints").exists())
        assert done.returncode == -signal.SIGKILL, f"{place} {step}: {done.stderr}"
    done = script(broken, resume=True)
    assert done.returncode == 0, done.stderr
    return unbroken, broken


@pytest.mark.slow
def test_the_result_is_that_of_the_unbroken_run(runs: tuple[Path, Path]) -> None:
    whole, cut = map(run_of, runs)
    resumed = [row["from_step"] for row in cut.read_events() if row["kind"] == "resumed"]
    assert resumed == [1, 1, 3, 6, 6]  # the first time there was no checkpoint yet
    check_that_they_end_alike(cut, whole)
    for name in ("model.safetensors", "instruction.txt", "best.json", "chat_template.jinja"):
        assert (cut.best_path / name).read_bytes() == (whole.best_path / name).read_bytes()
    weights = [folder / "checkpoints" / "checkpoint-6" / "model.safetensors" for folder in runs]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert (cut.path / "report.html").is_file()
