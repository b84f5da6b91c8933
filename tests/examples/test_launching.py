"""The SLURM example and the commands of docs/how-to/launching.md are valid."""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from cotune.cli.app import app

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "examples" / "slurm" / "train.sbatch"
PAGE = (ROOT / "docs" / "how-to" / "launching.md").read_text(encoding="utf-8")


def check_cotune(arguments: Sequence[str]) -> None:
    """Raise if the command line would refuse the arguments."""
    command = typer.main.get_command(app)
    with command.make_context("cotune", list(arguments)) as context:
        name, found, rest = command.resolve_command(context, list(arguments))  # type: ignore[attr-defined]
        assert found is not None
        found.make_context(name, rest, parent=context)


def check_launched(words: Sequence[str]) -> list[str]:
    """Check a torchrun or accelerate line; return the arguments for cotune."""
    if words[0] == "torchrun":
        parsed = get_args_parser().parse_args(list(words[1:]))
        module, script, rest = parsed.module, parsed.training_script, parsed.training_script_args
    else:
        assert words[:2] == ["accelerate", "launch"]
        given = launch_command_parser().parse_args(list(words[2:]))
        module, script, rest = given.module, given.training_script, given.training_script_args
    assert (module, script) == (True, "cotune")
    check_cotune(rest)
    return rest


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
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
    (folder / "job.sh").write_text(script)
    done = subprocess.run(
        ["bash", "job.sh", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_JOB_NODELIST": "node[07-08]",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "started").read_text().splitlines()


def test_it_trains_first_and_goes_on_afterwards(submitted: Path) -> None:
    script = SBATCH.read_text()
    words = submit(submitted, script, "my run.yaml", "runs/mine")
    assert words[:4] == ["torchrun", "--standalone", "--nproc_per_node", "8"]
    assert check_launched(words) == ["train", "my run.yaml"]
    (submitted / "runs" / "mine").mkdir(parents=True)
    assert check_launched(submit(submitted, script, "my run.yaml", "runs/mine"))[0] == "train"
    (submitted / "runs" / "mine" / "run.yaml").touch()
    words = submit(submitted, script, "my run.yaml", "runs/mine")
    assert check_launched(words) == ["resume", "runs/mine"]
    variables = (submitted / "environment").read_text()
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in variables


def test_the_lines_for_several_machines_meet_at_the_first(submitted: Path) -> None:
    script = SBATCH.read_text()
    single = next(line for line in script.splitlines() if line.startswith("srun torchrun"))
    several = re.sub(r"^# (HEAD=|srun |    -)", r"\1", script.replace(single, ""), flags=re.M)
    words = submit(submitted, several, "run.yaml", "out")
    assert check_launched(words) == ["train", "run.yaml"]
    options = get_args_parser().parse_args(words[1:])
    assert (options.nnodes, options.nproc_per_node) == ("2", "8")
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", "node07:29500")
    assert options.rdzv_id == "17"


def shell_lines() -> list[str]:
    """Return the lines of the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in str(block).splitlines()]


@pytest.mark.parametrize("line", shell_lines())
def test_the_pages_commands_are_right(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "cotune":
        check_cotune(words[1:])
    elif "vllm" in words:
        assert words[words.index("vllm") + 1] == "serve"
    elif words[0] == "sbatch":
        assert (ROOT / words[1]) == SBATCH
    else:
        assert check_launched(words)[0] in ("train", "resume")
