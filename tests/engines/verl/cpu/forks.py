"""Processes of veRL, forked from one that has imported it.

`cotune` and Ray's workers start as `python …` would start them, without the ten seconds of processor
time that each of them takes to import torch, transformers and veRL. Ray finds `sys.executable` to be
a shim, which asks the process that forks for a copy and lives as long as that. The shim has the
environment and the parent that Ray's worker would have; the copy has a session of its own.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.engines.verl.cpu.settings import REPOSITORY, environment
from tests.forked import run_python

_PACKAGES = ("cotune.cli", "cotune.engines.verl", "cotune.experiments", "cotune.export")
"""Whose modules are imported before any fork, with all that those import."""
_SHIM = '''#!{python} -IS
"""Python, forked if it is to be a worker or a daemon of Ray that need not be the raylet's child."""
import json, os, select, socket, sys
parent = os.getppid()
arguments = [argument for argument in sys.argv[1:] if argument != "-u"]
if os.path.basename(arguments[0]) not in {scripts}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({socket!r})
    request = dict(arguments=arguments, environment=dict(os.environ), folder=os.getcwd())
    socket.send_fds(server, [b"+"], [0, 1, 2])
    server.sendall(json.dumps(request).encode() + b"\\n")
    answers = server.makefile()
    answers.readline()
    # A worker ends if the raylet dies; so does its copy, once nobody listens.
    while not select.select([server], [], [], 0.3)[0] and os.getppid() == parent:
        pass
    sys.exit(int(answers.readline() or 1) if os.getppid() == parent else 1)
'''
_SCRIPTS = ("setup_worker.py", "monitor.py", "log_monitor.py", "dashboard.py")


class Forked:
    """As a `subprocess.Popen` of `python …` with pipes, in a session of its own."""

    def __init__(self, *arguments: str, env: Mapping[str, str], cwd: Path) -> None:
        folder = _server()
        self._files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        self._answers = socket.socket(socket.AF_UNIX)
        self._answers.connect(f"{folder}/socket")
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), *(file.fileno() for file in self._files)]
            socket.send_fds(self._answers, [b"+"], streams)
        request = {"arguments": arguments, "environment": dict(env), "folder": str(cwd)}
        self._answers.sendall(json.dumps(request).encode() + b"\n")
        self._lines = self._answers.makefile()
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._lines.readline())
        return self.returncode

    def communicate(self) -> tuple[str, str]:
        """What it has written, once it has ended."""
        if self.returncode is None:
            self.returncode = int(self._lines.readline())
        for file in self._files:
            file.seek(0)
        out, err = (file.read() for file in self._files)
        return out, err


@cache
def _server() -> str:
    """The folder of the process that forks; one for all tests of this process, with which it ends."""
    folder = tempfile.mkdtemp(prefix="cotune-forks-")
    shim = Path(folder) / "python"
    text = _SHIM.format(python=sys.executable, scripts=_SCRIPTS, socket=f"{folder}/socket")
    shim.write_text(text, encoding="utf-8")
    shim.chmod(0o700)
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, folder],
        cwd=REPOSITORY,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n", f"the process that forks ended: {server.wait()}"
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.communicate)  # closes its input, so that it ends
    return folder


def _preload() -> None:
    """Import what the processes would import, and build the index that they would build."""
    # Ray reads these when it is imported, and never again. The first job of a cluster has this id;
    # the shim, not its copy, watches the raylet.
    os.environ |= {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
    import ray._private.workers.default_worker  # noqa: F401
    import torch.utils.tensorboard  # noqa: F401
    from verl.workers import engine_workers  # noqa: F401

    from cotune_lab.worlds.geo import bundled_world

    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    bundled_world()
    gc.freeze()  # or each fork's first collection would copy every page


def _serve(folder: str) -> dict[str, Any]:
    """Forks for each request; returns in each fork what it is to be, and at the end {}."""
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [], 0.05)
            if sys.stdin in ready:
                return {}
            if listener in ready:
                asker, _ = listener.accept()
                if (pid := os.fork()) == 0:
                    return _read_request(asker)
                running[pid] = asker
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with running.pop(ended[0]) as asker, contextlib.suppress(BrokenPipeError):
                    asker.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _read_request(asker: socket.socket) -> dict[str, Any]:
    """What a forked process is asked to be; it is killed once nobody waits for it."""
    os.setsid()
    _, streams, _, _ = socket.recv_fds(asker, 1, 3)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    with asker.makefile() as lines:
        request = json.loads(lines.readline())
    asker.sendall(b"%d\n" % os.getpid())

    def wait() -> None:
        asker.recv(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
    return request


def _become(request: Mapping[str, Any], folder: str) -> NoReturn:
    """Make this process the one that was asked for, and end."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    arguments: Sequence[str] = request["arguments"]
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.executable = f"{folder}/python"
    if arguments[0].endswith("setup_worker.py"):
        # As it does: it sets the worker's variables and becomes the worker.
        from ray._private.runtime_env.context import RuntimeEnvContext
        from ray._private.utils import update_envs
        from ray._private.workers.setup_worker import parser

        options, arguments = parser.parse_known_args(arguments[1:])
        context = RuntimeEnvContext.deserialize(options.serialized_runtime_env_context or "{}")
        update_envs(context.env_vars)
    Config.initialize("")  # Ray reads its environment variables again
    for name in filter(None, os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")):
        importlib.import_module(name)
    run_python(arguments, dict(os.environ))


if __name__ == "__main__":
    _preload()
    if request := _serve(sys.argv[1]):
        _become(request, sys.argv[1])
