"""SkyRL's Tinker server on the CPU, in an environment of its own, for the contract test.

Started as a program, `python skyrl_server.py run -- -m MODULE …` stands in for `uv run`, which the server
insists on for itself and for its engine's process.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PYTHON = os.environ.get("COTUNE_SKYRL_PYTHON", "")
"""The Python of an environment with `skyrl[tinker,jax]`."""
BACKEND = {
    "max_lora_adapters": 12,
    "max_lora_rank": 8,
    # It compiles for each number of rows, and a row's arithmetic depends on those beside it.
    "sample_max_num_sequences": 1,
    "train_micro_batch_size": 8,
}
# pydantic takes no other TypedDict before Python 3.12.
_MODULE = """
import runpy, sys, typing, typing_extensions
typing.TypedDict = typing_extensions.TypedDict
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@contextmanager
def skyrl_server(model: Path, folder: Path, port: int) -> Iterator[str]:
    """Run a server of one model; give its address.

    Args:
        model: a Hugging Face folder, in an architecture that SkyRL has in jax, such as Qwen3.
        folder: what the server writes.
        port: a free one.
    """
    import httpx

    folder.mkdir(parents=True)
    uv = folder / "uv"
    uv.write_text(f"#!{PYTHON}\n" + Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    uv.chmod(0o755)
    command = [
        uv, "run", "--", "-m", "skyrl.tinker.api", "--base-model", model, "--port", port,
        "--host", "127.0.0.1", "--checkpoints-base", folder / "checkpoints",
        "--database-url", f"sqlite:///{folder / 'tinker.db'}",
        "--backend-config", json.dumps(BACKEND),
    ]  # fmt: skip
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{folder}:{os.environ['PATH']}",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
    }
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            list(map(str, command)), env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deadline = time.monotonic() + 240
            while b"Initialized base model" not in (folder / "server.log").read_bytes():
                if server.poll() is not None or time.monotonic() > deadline:
                    tail = (folder / "server.log").read_text(encoding="utf-8")[-3000:]
                    raise RuntimeError(f"SkyRL's server did not start: {tail}")
                time.sleep(1)
            httpx.get(f"{url}/api/v1/healthz").raise_for_status()
            yield url
        finally:
            os.killpg(server.pid, 15)
            server.wait(20)


def main() -> None:
    module = sys.argv[sys.argv.index("-m") + 1 :]
    command = [sys.executable, "-c", _MODULE, *module]
    if module[0] == "skyrl.tinker.engine":
        os.execv(command[0], command)
    # The server reads the command line of its parent, so this process stays.
    sys.exit(subprocess.call(command))


if __name__ == "__main__":
    main()
