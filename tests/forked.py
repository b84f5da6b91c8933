"""Modules run as programs in processes of their own, forked from one that has imported the engine.

They do what `python -m MODULE` does, without the ten seconds of processor time that it takes to import
torch, transformers and TRL. The processes are real: they can be killed, and ranks of them meet over
gloo. Use `subprocess` if the start of a process is itself what is tested.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO

ROOT = Path(__file__).parents[1]
_PACKAGES = ("cotune.cli", "cotune.engines.trl", "cotune.experiments", "cotune.export")
"""Whose modules are imported before any fork, with all that those import."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # As the commands set them before they import what reads them.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


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
    for rank, done in enumerate(try_ranks(module, *arguments, timeout=timeout)):
        assert done.returncode == 0, f"rank {rank}: {done.stderr}"


def try_ranks(
    module: str, *arguments: object, timeout: int = 240
) -> list[subprocess.CompletedProcess[str]]:
    """The same, however the two ranks end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(port)
    envs = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return _forked(module, arguments, envs, timeout)


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
    """Import what the programs would import, and build the index that they would build."""
    import peft  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401
    from tqdm import tqdm
    from trl.trainer import grpo_trainer, sft_trainer  # noqa: F401 - TRL loads them on first use

    from cotune.worlds.geo import bundled_world

    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    tqdm.monitor_interval = 0  # no thread of it while others are forked
    bundled_world()
    gc.freeze()  # or each fork's first collection would copy every page


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


def _become(asked: Mapping[str, Any]) -> NoReturn:
    """Make this process the one that was asked for, run its module, and end."""
    signal.alarm(asked["timeout"])  # a hang is ended, and seen by its exit code
    streams = [os.devnull, *asked["paths"]]
    for descriptor, (path, mode) in enumerate(zip(streams, ("r", "w", "w"), strict=True)):
        with open(path, mode) as stream:
            os.dup2(stream.fileno(), descriptor)
    _run(asked["argv"], asked["env"])


def _run(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Run a module as a program and end.

    The interpreter is not taken down, which would take a second with all that is imported.
    """
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [*argv]
    status: object = 0
    try:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class ForkedPopen:
    """A `subprocess.Popen` of `python -m MODULE …` that forks this process."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdout: IO[bytes],
        stderr: int,
        stdin: int,
        env: Mapping[str, str],
        preexec_fn: Callable[[], object] | None,
    ) -> None:
        assert list(command[:2]) == [sys.executable, "-m"]
        assert (stderr, stdin) == (subprocess.STDOUT, subprocess.DEVNULL)
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if preexec_fn is not None:
                preexec_fn()
            for descriptor in (1, 2):
                os.dup2(stdout.fileno(), descriptor)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            _run(command[2:], env)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int | None:
        return self._waited(0)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


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
