"""What fails in an agent loop ends the run, at once and with one line; the run can be gone on with."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engines.verl.failing import FailingEnvironment
from tests.engines.verl.runs import GEO, events, rows, run_file, start

pytestmark = pytest.mark.verl

MARK = "COTUNE_TEST_MARK"


def failed(mark: str, *arguments: object) -> tuple[int, list[str]]:
    """The exit status of `cotune …` and what it says of its failure; no process is left of it."""
    process = start(*arguments, variables={MARK: mark})
    _, err = process.communicate()
    # Ray's daemons end by themselves once who started them has gone.
    for _ in range(100):
        if not marked(mark):
            break
        time.sleep(0.2)
    assert marked(mark) == []
    return process.returncode, [line for line in err.splitlines() if line.startswith("cotune")]


def marked(mark: str) -> list[str]:
    """Command lines of the processes that have the mark in their environment."""
    commands = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                variables = (folder / "environ").read_bytes().split(b"\0")
                if f"{MARK}={mark}".encode() in variables:
                    commands.append((folder / "cmdline").read_text().replace("\0", " ")[:200])
        except OSError:
            continue  # it ended meanwhile, or is another user's
    return commands


def test_a_failure_of_an_environment_ends_the_run(tmp_path: Path) -> None:
    fault = tmp_path / "fault.json"
    name = f"{FailingEnvironment.__module__}:{FailingEnvironment.__name__}"
    failing = {"kind": "python", "object": name, "args": {"fault": str(fault)}}
    sizes: dict[str, Any] = {"questions_per_step": 2, "group_size": 2, "micro_batch_size": 4}
    path = run_file(tmp_path, GEO | {"environment": failing}, steps=3, save_every=1, **sizes)
    run = tmp_path / "run"

    fault.write_text(json.dumps({"raise": "ConfigError", "after": 4}))
    status, lines = failed(str(tmp_path), "train", path)
    refused = "environment.args: the search key is refused; set another"
    assert lines == [f"cotune: {refused}; then continue: cotune resume {run}"]
    assert status == 2
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [1]

    # A StopIteration is what no future takes: who awaits it would wait forever.
    fault.write_text(json.dumps({"raise": "StopIteration", "after": 0}))
    status, lines = failed(str(tmp_path), "resume", run)
    (line,) = lines
    assert line.startswith("cotune: an environment or its rewards raised StopIteration")
    assert status == 1
    # It went on from the step before the failure, and can do so again.
    assert [row["from_step"] for row in events(run, "resumed")] == [1]
    assert (run / "checkpoints" / "global_step_1" / "cotune-state.json").is_file()
