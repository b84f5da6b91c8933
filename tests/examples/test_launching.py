"""The SLURM example and the launchers' lines of docs/how-to/launching.md are valid."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from tests.docs.sources import DOCS, ROOT, blocks

SCRIPT = (ROOT / "examples" / "slurm" / "train.sbatch").read_text()
LINES = "".join(blocks(DOCS / "how-to" / "launching.md", "sh")).splitlines()


def parse_launcher(words: Sequence[str]) -> list[str]:
    """Parse a torchrun or accelerate line; return the arguments for cotune."""
    parser = get_args_parser() if words[0] == "torchrun" else launch_command_parser()
    args = parser.parse_args(list(words[1 if words[0] == "torchrun" else 2 :]))
    assert (args.module, args.training_script) == (True, "cotune")
    return args.training_script_args


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    """Return a folder to submit from, with stand-ins that record their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (
        ("srun", 'printf "%s\\n" "$@" > started; printenv > environment'),
        ("scontrol", "printf 'node07\\nnode08\\n'"),
    ):
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return tmp_path


def submit(folder: Path, script: str, *arguments: str) -> list[str]:
    """Run a batch script in the folder; return the arguments of srun."""
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[07-08]"}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    command = ["bash", "-c", script, "job.sh", *arguments]
    subprocess.run(command, cwd=folder, env={**os.environ, **job, "PATH": path}, check=True)
    return (folder / "started").read_text().splitlines()


def test_it_trains_first_and_goes_on_afterwards(job_folder: Path) -> None:
    words = submit(job_folder, SCRIPT, "my run.yaml", "runs/mine")
    assert words[:4] == ["torchrun", "--standalone", "--nproc_per_node", "8"]
    assert parse_launcher(words) == ["train", "my run.yaml"]
    (job_folder / "runs" / "mine").mkdir(parents=True)
    (job_folder / "runs" / "mine" / "run.yaml").touch()
    assert parse_launcher(submit(job_folder, SCRIPT, "my run.yaml", "runs/mine")) == [
        "resume",
        "runs/mine",
    ]
    variables = (job_folder / "environment").read_text()
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in variables


def test_the_lines_for_several_machines_meet_at_the_first(job_folder: Path) -> None:
    single = next(line for line in SCRIPT.splitlines() if line.startswith("srun torchrun"))
    several = re.sub(r"^# (HEAD=|srun |    -)", r"\1", SCRIPT.replace(single, ""), flags=re.M)
    words = submit(job_folder, several, "run.yaml", "out")
    assert parse_launcher(words) == ["train", "run.yaml"]
    options = get_args_parser().parse_args(words[1:])
    assert (options.nnodes, options.nproc_per_node) == ("2", "8")
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", "node07:29500")
    assert options.rdzv_id == "17"


@pytest.mark.parametrize("line", [line for line in LINES if " -m cotune " in line])
def test_the_pages_launchers_take_their_options(line: str) -> None:
    assert parse_launcher(shlex.split(line, comments=True))[0] in ("train", "resume")
