"""A file operation of a run fails: one line that says how to go on, after which the run ends as an unbroken one."""

import errno
import os
from pathlib import Path

import pytest

from cotune.run.run_dir import RunDir
from tests.engines.trl.kills import KILLED_RUN, arm, learnt, numbers, run_file, spent, with_sections
from tests.forked import run_module

pytestmark = pytest.mark.slow

SHORT = with_sections(training={"steps": 4}, evaluation={"every": 2})
# A class of operations, an errno, and which of the process's calls fails.
FAULTS = [
    ("open EMFILE", 1), ("open EACCES", 9), ("read EIO", 3), ("write ENOSPC", 12), ("write EFBIG", 30),
    ("fsync EIO", 2), ("fsync EDQUOT", 25), ("mkdir EROFS", 3), ("rename ESTALE", 2), ("rename ENOTEMPTY", 6),
    ("unlink ETIMEDOUT", 2), ("unlink EINTR", 4), ("rmdir ENOTEMPTY", 1), ("torch EIO", 1), ("safetensors EROFS", 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    file = run_file(tmp_path_factory.mktemp("runs-"), "unbroken", SHORT)
    done = run_module(KILLED_RUN, "nowhere", 0, "train", file, "--quiet")
    assert done.returncode == 0, done.stderr
    return RunDir.open(file.with_suffix(""))


@pytest.mark.parametrize(("fault", "call"), FAULTS)
def test_a_failed_operation(fault: str, call: int, unbroken: RunDir, tmp_path: Path) -> None:
    folder = tmp_path / "runs-"
    folder.mkdir()
    file, out = run_file(folder, "broken", SHORT), folder / "broken"
    failed = tmp_path / "failed"
    done = run_module(
        KILLED_RUN, fault, call, "train", file, "--quiet", env={"FAILED": str(failed)}
    )
    assert failed.exists(), "there are fewer such operations"
    if done.returncode != 0:  # some need not succeed
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        number = getattr(errno, fault.split()[1])
        assert os.strerror(number) in done.stderr or "PytorchStreamWriter" in done.stderr
        begun = RunDir.is_run(out)
        if begun:
            assert done.stderr.endswith(f"then: cotune resume {out}\n")
        command = ("resume", out) if begun else ("train", file)
        done = run_module(KILLED_RUN, "nowhere", 0, *command, "--quiet")
        assert (done.returncode, done.stderr) == (0, "")
    run = RunDir.open(out)
    for read in (numbers, learnt, arm, spent):
        assert read(run) == read(unbroken)
    assert not list(out.rglob(".*.tmp"))
