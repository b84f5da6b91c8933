"""Runs that vLLM itself samples, if it is installed: its probabilities are the trainer's."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.run_files import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]

# The CPU build of vLLM packs the weights of linear layers, and can then load no others. And it takes
# every object with a __dict__ for one with the methods of a dict, which some of torch's are not.
COTUNE = """
import sys
import torch
from vllm.platforms import current_platform

if current_platform.is_cpu():
    import vllm.model_executor.layers.utils as layers
    import vllm.triton_utils.dispatcher as dispatcher

    def unpacked(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = unpacked
    dispatcher.vars = lambda value: found if isinstance(found := vars(value), dict) else {}

from cotune.cli.app import main

sys.argv[0] = "cotune"
main()
"""


@pytest.mark.parametrize("lora", [None, {"rank": 8}], ids=["whole weights", "LoRA"])
def test_vllm_samples_the_policy_that_is_trained(tmp_path: Path, lora: Any) -> None:
    raw = {
        "name": "vllm",
        "output": str(tmp_path / "run"),
        "policy": {"path": "bundled:ladder", **({"lora": lora} if lora else {})},
        "environment": {"kind": "ladder", "train": 16, "validation": 2, "test": 4},
        "limits": {
            "turns": 1,
            "turn_tokens": 40,
            "observation_tokens": 1,
            "trajectory_tokens": 42,
            "prompt_tokens": 256,
        },
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
            "temperature": 0.7,
            "engine_args": {"use_vllm": True, "vllm_gpu_memory_utilization": 0.1},
        },
        "evaluation": {"every": 0, "before": False},
    }
    run_file = write(tmp_path / "run.yaml", raw)
    command = [sys.executable, "-c", COTUNE, "train", str(run_file)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert len(steps) == 3
    assert steps[0]["grad_norm"] > 0  # so later steps are sampled with other weights
    assert max(step["sampling/sampling_logp_difference/max"] for step in steps) < 1e-3
