"""A folder that a process writes to is refused to a second one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cotune.errors import ConfigError
from cotune.run.json_files import run_locked
from tests.helpers import is_locked

pytestmark = pytest.mark.skipif(os.name != "posix", reason="no lock elsewhere")

_HOLD = """
import sys
from pathlib import Path
from cotune.run.json_files import run_locked
with run_locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_that_another_process_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        monkeypatch.setattr("cotune.run.json_files._PATIENCE", 0.1)
        with pytest.raises(ConfigError) as caught, run_locked(tmp_path):
            pass
        for rank in ("1", "junk"):
            monkeypatch.setenv("RANK", rank)
            with pytest.raises(ConfigError), run_locked(tmp_path):
                pass
        # the second of two processes that train together
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with run_locked(tmp_path):
            pass
        other.kill()
    monkeypatch.undo()
    assert str(caught.value) == (
        f"{tmp_path} is being trained by another process; wait for it, or stop it"
    )
    with run_locked(tmp_path):  # dropped with the process
        assert is_locked(tmp_path / "run.lock")
    assert not is_locked(tmp_path / "run.lock")
