"""Measure how the weights of a policy with adapters reach vLLM: merged, as TRL sends them, or the adapter alone.

    python scripts/vllm_sync.py merged MODEL
    python scripts/vllm_sync.py adapter MODEL

Prints bytes and seconds of a sync, the median of five, and the tokens per second that vLLM then samples.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from vllm_on_cpu import unpack_weights

RANK = 16
ROWS = 16
PROMPT = 64
TOKENS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["merged", "adapter"])
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    model = with_adapters(args.model, getattr(torch, args.dtype))
    with_lora = args.way == "adapter"
    engine = start(args.model, args.dtype, with_lora)
    send: Callable[[], int] = (
        (lambda: send_adapter(engine, model)) if with_lora else lambda: send_merged(engine, model)
    )
    seconds: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        sent = send()
        seconds.append(time.perf_counter() - started)
    rate = median(tokens_per_second(engine, with_lora) for _ in range(2))
    print(
        f"{args.way}: {sent / 1e6:.1f} MB, {median(seconds):.2f} s a sync, {rate:.0f} tokens per second"
    )


def with_adapters(path: str, dtype: torch.dtype) -> PeftModel:
    """Return the policy with adapters that change what it computes, as after some training."""
    base = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model = get_peft_model(base, LoraConfig(r=RANK, target_modules="all-linear"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def start(path: str, dtype: str, with_lora: bool) -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import vllm

    unpack_weights()
    lora = {"enable_lora": True, "max_lora_rank": RANK} if with_lora else {}
    return vllm.LLM(
        model=path, dtype=dtype, gpu_memory_utilization=0.2, max_model_len=1024, enforce_eager=True, **lora
    )  # fmt: skip


def send_merged(engine: Any, model: PeftModel) -> int:
    """Send all weights as TRL's VLLMGeneration.sync_weights does in one process. Return the bytes."""
    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    sent = 0
    model.merge_adapter()
    for name, parameter in model.named_parameters():
        name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if model.prefix not in name:
            runner.model.load_weights([(name, parameter.data)])
            sent += parameter.numel() * parameter.element_size()
    model.unmerge_adapter()
    engine.reset_prefix_cache()
    return sent


def send_adapter(engine: Any, model: PeftModel) -> int:
    """Send the adapter through a folder in memory. Return the bytes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        model.save_pretrained(folder)
        engine.llm_engine.add_lora(_request(folder, load_inplace=True))
        sent = sum(path.stat().st_size for path in Path(folder).iterdir())
    engine.reset_prefix_cache()
    return sent


def tokens_per_second(engine: Any, with_lora: bool) -> float:
    from vllm import SamplingParams

    prompts = [
        {"prompt_token_ids": [(7 * row + place) % 40_000 + 100 for place in range(PROMPT)]}
        for row in range(ROWS)
    ]
    request = {"lora_request": _request("sent")} if with_lora else {}
    started = time.perf_counter()
    sampling = SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True)
    engine.generate(prompts, sampling, use_tqdm=False, **request)
    return ROWS * TOKENS / (time.perf_counter() - started)


def _request(path: str, **fields: Any) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", 1, path, **fields)


if __name__ == "__main__":
    main()
