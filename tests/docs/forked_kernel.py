"""Executes a notebook with a kernel that is forked from this process, and prints it with its outputs.

python -m tests.docs.forked_kernel NOTEBOOK FOLDER
"""

import asyncio
import atexit
import os
import sys
import tempfile
from typing import Any

import nbformat
import pandas
from jupyter_client.provisioning import local_provisioner
from jupyter_core import utils
from nbclient import NotebookClient

from tests.forked import ForkedPopen


def _forked(command: list[str], *, env: dict[str, str], cwd: str, **_: Any) -> ForkedPopen:
    """Stand in for `launch_kernel`."""

    def forget() -> None:
        """Leave nothing of this process's event loop, which is running, and of its folder."""
        os.chdir(cwd)
        atexit._clear()
        asyncio.set_event_loop(None)
        utils._loop.set(None)
        tempfile.tempdir = None
        pandas.set_option("display.max_columns", 20)  # as if a notebook had imported it

    env = {**env, "JPY_PARENT_PID": str(os.getpid())}  # with which the kernel ends
    return ForkedPopen(command, env=env, preexec_fn=forget, start_new_session=True)


def _main() -> None:
    local_provisioner.launch_kernel = _forked  # type: ignore[assignment]
    notebook = nbformat.read(sys.argv[1], as_version=4)
    resources = {"metadata": {"path": sys.argv[2]}}
    NotebookClient(notebook, timeout=240, resources=resources).execute()
    print(nbformat.writes(notebook))


if __name__ == "__main__":
    _main()
