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
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from tests import thrift

ROOT = Path(__file__).parents[1]
_PACKAGES = ("cotune.cli", "cotune.engines.trl", "cotune.experiments", "cotune.export")
"""Whose modules are imported before any fork, with all that those import."""
_ADDRESS = "COTUNE_TESTS_FORK_SERVER"
"""The variable that names the socket of the process that forks."""
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
    module: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: int = 240,
    anew: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """`python -m module arguments` at the repository's root; ends after `timeout` seconds.

    Args:
        env: variables besides this process's own.
        anew: packages that the module is to import itself.
    """
    (process,) = _forked(module, arguments, [env or {}], timeout, anew)
    return process


def run_ranks(module: str, *arguments: object, timeout: int = 240) -> None:
    """The same on two ranks, as torchrun would start them; fails unless both end well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = str(port)
    envs = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    for rank, process in enumerate(_forked(module, arguments, envs, timeout)):
        assert process.returncode == 0, f"rank {rank}: {process.stderr}"


def _forked(
    module: str,
    arguments: Sequence[object],
    envs: Sequence[Mapping[str, str]],
    timeout: int,
    anew: Sequence[str] = (),
) -> list[subprocess.CompletedProcess[str]]:
    """Runs the module in a process for each environment, all at the same time."""
    argv = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        outs = [[f"{folder}/{i}.{name}" for name in ("out", "err")] for i in range(len(envs))]
        request = {"argv": argv, "timeout": timeout, "outs": outs, "anew": anew}
        request["envs"] = [{**os.environ, **_ENVIRONMENT, **env} for env in envs]
        server.connect(os.environ.get(_ADDRESS) or start_server())
        with server.makefile("rw") as stream:
            print(json.dumps(request), file=stream, flush=True)
            answer = stream.readline()
        assert answer, "the process that forks has ended"
        return [
            subprocess.CompletedProcess(argv, code, *(Path(p).read_text() for p in paths))
            for code, paths in zip(json.loads(answer), outs, strict=True)
        ]


def start_server() -> str:
    """Start the process that forks, for this process and those it starts; return its address.

    It ends with this process, however that ends, since it then reads the end of its input.
    """
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forked"],
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # closes its input
    assert server.stdout is not None
    os.environ[_ADDRESS] = server.stdout.readline().strip()
    return os.environ[_ADDRESS]


def _preload() -> None:
    """Import what the programs would import, and build the index and templates that they would."""
    import peft  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401
    from tqdm import tqdm
    from trl.trainer import grpo_trainer  # noqa: F401 - TRL loads it on first use

    from cotune.experiments.report import pages
    from cotune_lab.worlds.geo import bundled_world

    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    tqdm.monitor_interval = 0  # no thread of it while others are forked
    bundled_world()
    templates = pages.environment()
    for name in templates.list_templates(extensions=["j2"]):
        templates.get_template(name)
    thrift.save_time()
    gc.freeze()  # or each fork's first collection would copy every page


def _serve(listener: socket.socket) -> None:
    """Have each request answered by a process of its own, until standard input ends."""
    preloaded = False
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not preloaded:
            _preload()
            preloaded = True
        if os.fork() == 0:
            try:
                _answer(connection)
            finally:
                os._exit(1)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # those that have answered


def _answer(connection: socket.socket) -> NoReturn:
    """Fork the processes asked for, and answer with their exit codes."""
    with connection.makefile("rw") as stream:
        request = json.loads(stream.readline())
        pids: list[int] = []
        for env, paths in zip(request["envs"], request["outs"], strict=True):
            if (pid := os.fork()) == 0:
                for name in [n for n in sys.modules if n.partition(".")[0] in request["anew"]]:
                    del sys.modules[name]
                _become(request["argv"], env, paths, request["timeout"])
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), file=stream, flush=True)
    os._exit(0)


def _become(
    argv: Sequence[str], env: Mapping[str, str], paths: Sequence[str], timeout: int
) -> NoReturn:
    """Make this process the one that was asked for, run its module, and end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(timeout)  # a hang is ended, and seen by its exit code
    streams = [os.devnull, *paths]
    for descriptor, (path, mode) in enumerate(zip(streams, ("r", "w", "w"), strict=True)):
        with open(path, mode) as stream:
            os.dup2(stream.fileno(), descriptor)
    run_python(["-m", *argv], env)


def run_python(arguments: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Do what `python arguments` does, a module's name after -m or a file, and end.

    The interpreter is not taken down, which would take a second with all that is imported.
    """
    os.environ.clear()
    os.environ.update(env)
    module = arguments[0] == "-m"
    sys.argv = [*arguments[module:]]
    status: object = 0
    try:
        if module:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
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

    stdin = stdout = stderr = None

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        stderr: int | None = None,
        stdin: int | None = None,
        preexec_fn: Callable[[], object] | None = None,
        start_new_session: bool = False,
    ) -> None:
        assert args[0] == sys.executable
        assert stderr == (None if stdout is None else subprocess.STDOUT)
        assert stdin in (None, subprocess.DEVNULL)
        self.args = args
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            if start_new_session:
                os.setsid()
            if preexec_fn is not None:
                preexec_fn()
            if stdout is not None:
                for descriptor in (1, 2):
                    os.dup2(stdout.fileno(), descriptor)
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            os.close(read_end)
            os.close(write_end)
            run_python(args[args.index("-m") :], env)
        os.close(write_end)
        os.read(read_end, 1)  # until it is in its own session: its group is what is interrupted
        os.close(read_end)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        end = None if timeout is None else time.monotonic() + timeout
        while end is not None and self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0)
            time.sleep(0.01)
        return self._waited(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _main() -> None:
    # An interrupt reaches every process of the run; this one ends with the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = tempfile.mkdtemp()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/socket")
            listener.listen()
            print(f"{folder}/socket", flush=True)
            os.dup2(2, 1)  # nobody reads what imports print
            _serve(listener)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    _main()
