"""Modules run as programs in processes of their own, forked from one that has imported the engine.

What `python -m MODULE` does, without the eight seconds of processor time that torch, transformers and
TRL take to import. The processes are real: they can be killed, and ranks of them meet over gloo.
Where the start of a process is itself what is tested, use `subprocess`.
"""

import atexit
import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[1]
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_module(
    module: str, *arguments: object, env: Mapping[str, str] | None = None, timeout: int = 240
) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments` at the repository's root; ends after `timeout` seconds.

    Args:
        env: variables besides this process's own.
    """
    (done,) = _forked(module, arguments, [env or {}], timeout)
    return done


def run_ranks(module: str, *arguments: object, timeout: int = 240) -> None:
    """The same on two ranks, as torchrun would start them; fails unless both end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(port)
    envs = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    for rank, done in enumerate(_forked(module, arguments, envs, timeout)):
        assert done.returncode == 0, f"rank {rank}: {done.stderr}"


def _forked(
    module: str, arguments: Sequence[object], envs: Sequence[Mapping[str, str]], timeout: int
) -> list[subprocess.CompletedProcess[str]]:
    """Runs the module in a process for each environment, all at the same time."""
    argv = [module, *map(str, arguments)]
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        outs = [[f"{folder}/{i}.{name}" for name in ("out", "err")] for i in range(len(envs))]
        asked = {"argv": argv, "timeout": timeout, "outs": outs}
        asked["envs"] = [{**os.environ, **_ENVIRONMENT, **env} for env in envs]
        print(json.dumps(asked), file=server.stdin, flush=True)
        answer = server.stdout.readline()
        assert answer, f"the process that forks ended with {server.wait()}"
        return [
            subprocess.CompletedProcess(argv, code, *(Path(p).read_text() for p in paths))
            for code, paths in zip(json.loads(answer), outs, strict=True)
        ]


@cache
def _server() -> "subprocess.Popen[str]":
    """The process that forks; one for all tests of this process, with which it ends."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked"],
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # closes its input, upon which it ends
    return server


def _preload() -> None:
    """What the programs would import, and the index that they would build."""
    import peft  # noqa: F401
    from tqdm import tqdm

    from cotune.worlds.geo import bundled_world

    tqdm.monitor_interval = 0  # no thread of it while others are forked
    bundled_world()


def _serve(requests: TextIO, answers: TextIO) -> dict[str, Any]:
    """Answers with exit codes; returns what is to be run in each forked process, and at the end {}."""
    for line in requests:
        asked = json.loads(line)
        pids: list[int] = []
        for env, paths in zip(asked["envs"], asked["outs"], strict=True):
            if pid := os.fork():
                pids.append(pid)
            else:
                return {**asked, "env": env, "paths": paths}
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=answers, flush=True)
    return {}


def _become(asked: Mapping[str, Any]) -> None:
    """Makes this process the one that was asked for, and runs its module."""
    signal.alarm(asked["timeout"])  # a hang is ended, and seen by its exit code
    streams = [os.devnull, *asked["paths"]]
    for descriptor, (path, mode) in enumerate(zip(streams, ("r", "w", "w"), strict=True)):
        with open(path, mode) as stream:
            os.dup2(stream.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(asked["env"])
    module, *arguments = asked["argv"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _main() -> None:
    # What is printed while importing must not stand among the answers.
    answers = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(sys.stderr):
        _preload()
    requests = os.fdopen(os.dup(0))
    if asked := _serve(requests, answers):
        _become(asked)


if __name__ == "__main__":
    _main()
