"""A file operation of a run fails: one line that says how to go on, after which the run ends as an unbroken one."""

import errno
import os
from pathlib import Path

import pytest

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import (
    KILLED_RUN,
    check_that_they_end_alike,
    run_file,
    with_sections,
)
from tests.forked import run_module

pytestmark = pytest.mark.slow

SHORT = with_sections(
    training={"steps": 2, "save_every": 1},
    evaluation={"every": 1},
    strategy={"evolve_every": 1, "prune_every": 2},
)
# What fails in each attempt of a run: a class of operations, an errno, and which of the process's calls.
# Some need not succeed (a report, a file to delete): such an attempt is the last.
FAULTS = {
    "from the first": [
        ("mkdir EROFS", 3), ("fsync EIO", 3), ("write ENOSPC", 12), ("rename ESTALE", 2),
    ],
    "once it is begun": [
        ("open EACCES", 9), ("rename ENOTEMPTY", 6), ("unlink ETIMEDOUT", 2), ("safetensors EROFS", 1),
        ("rmdir ENOTEMPTY", 1),
    ],
    "writing": [("write EFBIG", 30), ("torch EIO", 1)],
}  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    file = run_file(tmp_path_factory.mktemp("runs-"), "unbroken", SHORT)
    done = run_module(KILLED_RUN, "nowhere", 0, "train", file, "--quiet")
    assert done.returncode == 0, done.stderr
    return RunDir.open(file.with_suffix(""))


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_failed_operations(faults: list[tuple[str, int]], unbroken: RunDir, tmp_path: Path) -> None:
    folder = tmp_path / "runs-"
    folder.mkdir()
    file, out = run_file(folder, "broken", SHORT), folder / "broken"
    command: tuple[object, ...] = ("train", file)
    for fault, call in faults:
        failed = tmp_path / fault
        env = {"FAILED": str(failed)}
        done = run_module(KILLED_RUN, fault, call, *command, "--quiet", env=env)
        assert failed.exists(), f"{fault}: there are fewer such operations"
        if done.returncode == 0:
            assert fault == faults[-1][0]
            break
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        number = getattr(errno, fault.split()[1])
        assert os.strerror(number) in done.stderr or "PytorchStreamWriter" in done.stderr
        if RunDir.is_run(out):
            assert done.stderr.endswith(f"then: cotune resume {out}\n")
            command = ("resume", out)
    else:
        done = run_module(KILLED_RUN, "nowhere", 0, *command, "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
    run = RunDir.open(out)
    check_that_they_end_alike(run, unbroken)
    assert not list(out.rglob(".*.tmp"))
