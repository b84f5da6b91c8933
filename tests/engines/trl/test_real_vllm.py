"""Runs that vLLM itself samples, if it is installed: in the trainer's process, and on a server over HTTP."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from cotune.run.run_dir import RunDir
from cotune.utils.packages import installed
from tests.engines.trl.kills import without
from tests.run_files import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]

ROOT = Path(__file__).parents[3]
LADDER = ROOT / "src/cotune/worlds/weights/ladder"
TOOLS = ROOT / "examples/three_tools"

# TRL sends weights to a server over NCCL, which needs GPUs. Without one they go through a folder.
COTUNE = """
import os
import torch

if not torch.cuda.is_available():
    from safetensors.torch import save_file
    from trl.generation.vllm_client import VLLMClient

    def update(client, metadata, named_params):
        weights = {name: tensor.contiguous() for name, tensor in named_params}
        save_file(weights, os.environ["SENT"] + "/model.safetensors")
        call = {"method": "reload_weights", "kwargs": {"weights_path": os.environ["SENT"]}}
        client._post(client.base_url + "/collective_rpc", json=call)

    VLLMClient.init_communicator = lambda client, device: None
    VLLMClient.update_named_params = update

from cotune.cli.app import main

main()
"""


@pytest.fixture
def unpacked(tmp_path: Path) -> dict[str, str]:
    """The environment of processes whose vLLM can load other weights, by a plugin that it loads in each of its own."""
    folder = tmp_path / "plugin"
    # vLLM looks for a package of its name, which the CPU build's is not, and for "cpu" in its version.
    version = f"{installed('vllm')}{'' if torch.cuda.is_available() else '+cpu'}"
    dist_info = folder / f"vllm-{version}.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (dist_info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nunpacked = vllm_on_cpu:unpack_weights\n"
    )
    paths = os.pathsep.join([str(folder), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths, "VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture
def server(tmp_path: Path, unpacked: dict[str, str]) -> Iterator[str]:
    """The address of a server of the ladder's policy, started as TRL's documentation does but for the weights."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(LADDER), "--port", str(port),
        "--dtype", "float32", "--max-model-len", "512", "--enforce-eager", "--gpu-memory-utilization", "0.1",
        "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enable-scale-out",
    ]  # fmt: skip
    environment = unpacked | {"VLLM_SERVER_DEV_MODE": "1"}
    with (
        (tmp_path / "server.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise TimeoutError(url)


def ladder(tmp_path: Path, engine_args: dict[str, Any], lora: Any = None) -> dict[str, Any]:
    return {
        "name": "vllm",
        "output": str(tmp_path / "run"),
        "policy": {"path": "bundled:ladder", **({"lora": lora} if lora else {})},
        "environment": {"kind": "ladder", "train": 16, "validation": 2, "test": 4},
        "limits": {"turns": 1, "turn_tokens": 40, "observation_tokens": 1, "trajectory_tokens": 42, "prompt_tokens": 256},
        "strategy": {"kind": "static"},
        "training": {
            "steps": 3,
            "questions_per_step": 8,
            "group_size": 4,
            "mini_batches": 1,
            "micro_batch_size": 16,
            "learning_rate": 1e-2 if lora else 1e-3,
            "schedule": "constant",
            "warmup": 0,
            "precision": "fp32",
            # High, so that a group's rewards differ whatever the processor draws.
            "temperature": 1.4,
            "engine_args": {"use_vllm": True, **engine_args},
        },
        "evaluation": {"every": 0, "before": False},
    }  # fmt: skip


def cotune(
    folder: Path, environment: dict[str, str], *command: str
) -> "subprocess.CompletedProcess[str]":
    weights = folder / "sent"
    weights.mkdir(exist_ok=True)
    (weights / "config.json").write_bytes((LADDER / "config.json").read_bytes())
    return subprocess.run(
        [sys.executable, "-c", COTUNE, *command],
        check=False, capture_output=True, text=True, cwd=folder, env=environment | {"SENT": str(weights)},
    )  # fmt: skip


def check_that_vllm_sampled_the_policy(folder: Path, result: Any) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    steps = RunDir.open(folder / "run").read_metrics()
    assert len(steps) == 3
    assert steps[0]["grad_norm"] > 0  # so later steps are sampled with other weights
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps) < 1e-3


@pytest.mark.parametrize("lora", [None, {"rank": 8}], ids=["whole weights", "LoRA"])
def test_vllm_samples_the_policy_that_is_trained(
    tmp_path: Path, unpacked: dict[str, str], lora: Any
) -> None:
    raw = ladder(tmp_path, {"vllm_gpu_memory_utilization": 0.1}, lora)
    run_file = write(tmp_path / "run.yaml", raw)
    result = cotune(tmp_path, unpacked, "train", str(run_file))
    check_that_vllm_sampled_the_policy(tmp_path, result)


def test_a_server_samples_the_policy_that_is_trained(
    tmp_path: Path, unpacked: dict[str, str], server: str
) -> None:
    raw = ladder(tmp_path, {"vllm_mode": "server", "vllm_server_base_url": server})
    run_file = write(tmp_path / "run.yaml", raw)
    result = cotune(tmp_path, unpacked, "train", str(run_file))
    check_that_vllm_sampled_the_policy(tmp_path, result)


TOOL = """
import os
import signal
import time
from pathlib import Path


def dictionary(word: str) -> str:
    \"\"\"Says what a word means.

    Args:
        word: in lower case.
    \"\"\"
    with open("calls.txt", "a") as calls:
        calls.write(word + "\\n")
    if len(Path("calls.txt").read_text().splitlines()) == int(os.environ.get("KILL_AT", 0)):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return "a stone"


def length(completions):
    return [len(str(completion)) % 7 for completion in completions]
"""


def test_a_run_killed_while_episodes_are_in_flight_ends_as_an_unbroken_one(
    tmp_path: Path, unpacked: dict[str, str]
) -> None:
    """Killed by a tool's call in the second step, while other episodes wait for vLLM or for their tools."""
    runs: dict[str, RunDir] = {}
    for name in ("unbroken", "broken"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "tools.py").write_text(TOOL)
        questions = [
            {"question": f"What does knoll mean, {row}?", "answer": "stone"} for row in range(16)
        ]
        (folder / "questions.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
        raw = ladder(folder, {"vllm_gpu_memory_utilization": 0.1}) | {
            "policy": {"path": str(TOOLS / "policy")},
            "dataset": {"path": "questions.jsonl"},
            "environment": {"kind": "tools", "tools": ["tools.py:dictionary"]},
            "rewards": ["tools.py:length"],
            "limits": {"turns": 3, "turn_tokens": 64, "observation_tokens": 64, "trajectory_tokens": 256, "prompt_tokens": 512},
            "logging": {"trajectories_every": 1},
        }  # fmt: skip
        raw["training"] |= {"save_every": 1, "temperature": 1.2}
        run_file = write(folder / "run.yaml", raw)
        if name == "broken":
            calls = len((tmp_path / "unbroken/calls.txt").read_text().splitlines())
            killed = cotune(folder, unpacked | {"KILL_AT": str(calls // 2)}, "train", str(run_file))
            assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
            command = ("resume", "run")
        else:
            command = ("train", str(run_file))
        result = cotune(folder, unpacked, *command)
        assert result.returncode == 0, result.stdout + result.stderr
        runs[name] = RunDir.open(folder / "run")
    for step in (1, 2, 3):
        unbroken, broken = (run.read_trajectories(step, "train") for run in runs.values())
        assert without(broken, {"attempt"}) == without(unbroken, {"attempt"})
    assert any(step["grad_norm"] > 0 for step in runs["broken"].read_metrics())
