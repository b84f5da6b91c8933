"""Time GRPO with a tool and vLLM, side by side: TRL's own trainer, and cotune's with episodes that wait or do not.

    python scripts/side_by_side.py --shape tiny
    python scripts/side_by_side.py --shape 0.5B --questions 16 --turn-tokens 256

The policy has random weights in the given shape. Turns have log-normal lengths, which vLLM is made to keep; every turn
but the last counts as a call of a tool that takes between 20 and 500 ms. Each way runs in a process of its own, and its
first step, which compiles and warms up, is not counted. TRL's AsyncGRPOTrainer is not among them: it sends weights over
NCCL to a server on another GPU.
"""

import argparse
import asyncio
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from vllm_on_cpu import unpack_weights

POLICY = Path(__file__).parents[1] / "examples/three_tools/policy"
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {},
    "135M": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "intermediate_size": 1536},
    "0.5B": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 4864},
    "3B": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 11008},
}  # fmt: skip
"""SmolLM2's and Qwen2.5's, but for the vocabulary, which is the example's of 967 tokens."""
WAYS = ("TRL", "cotune, waiting", "cotune")
CALL = {"name": "look_up", "arguments": {"word": "knoll"}}
LONGEST = 12
"""The longest turn, in means."""
MICRO_BATCH = 32
"""Rows of a forward pass of the update."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[*SHAPES], default="tiny")
    parser.add_argument("--steps", type=int, default=2, help="for each variation")
    parser.add_argument("--variation", type=float, nargs="+", default=[0.4, 0.8, 1.2])
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=48, help="mean length of a turn")
    parser.add_argument("--vllm-memory", type=float, default=0.3)
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    parser.add_argument("--way", choices=WAYS, help="run this way only, in this process")
    chosen = parser.parse_args()
    if chosen.way:
        print(json.dumps(measure(chosen)))
        return
    titles = (
        "way", "variation", "rollouts a second while sampling", "in a whole step", "tokens a second", "step, s", "sampling",
        "vLLM's steps", "rows in one", "GiB",
    )  # fmt: skip
    print("| " + " | ".join(titles) + " |\n|" + " --- |" * len(titles))
    for way in chosen.ways:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for row in json.loads(done.stdout.splitlines()[-1]):
            cells = (
                way,
                str(row["variation"]),
                f"{row['rollouts'] / row['rollout_s']:.2f}",
                f"{row['rollouts'] / row['time']:.2f}",
                f"{row['tokens'] / row['time']:.0f}",
                f"{row['time']:.1f}",
                f"{row['rollout_s'] / row['time']:.0%}",
                f"{row['engine_s'] / row['time']:.0%}",
                f"{row['tokens'] / row['engine_steps']:.1f}",
                f"{row['gib']:.1f}",
            )
            print("| " + " | ".join(cells) + " |", flush=True)


async def look_up(word: str) -> str:
    """Says what a word means.

    Args:
        word: in lower case.
    """
    await asyncio.sleep(random.uniform(0.02, 0.5))
    return "a small hill"


def measure(chosen: argparse.Namespace) -> list[dict[str, float]]:
    """Train some steps of each variation in one way; return the means of a step, by variation."""
    import torch
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig

    rows = chosen.questions * chosen.group
    gpu = torch.cuda.is_available()
    completion = chosen.turns * LONGEST * chosen.turn_tokens
    with tempfile.TemporaryDirectory() as folder:
        policy = random_policy(Path(folder) / "policy", chosen.shape)
        args = GRPOConfig(
            output_dir=f"{folder}/run",
            max_steps=1 + chosen.steps * len(chosen.variation),
            per_device_train_batch_size=min(rows, MICRO_BATCH),
            gradient_accumulation_steps=max(1, rows // MICRO_BATCH),
            num_generations=chosen.group,
            max_completion_length=completion,
            max_tool_calling_iterations=chosen.turns - 1,
            learning_rate=1e-6,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            gradient_checkpointing=False,
            use_cpu=not gpu,
            bf16=gpu,
            disable_tqdm=True,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=chosen.vllm_memory,
            vllm_max_model_length=1024 + completion,
        )
        trainer = build_trainer(chosen.way, policy, AutoTokenizer.from_pretrained(policy), args)
        lengths = Lengths(chosen.variation[0], chosen.turn_tokens)
        clock = watch(trainer, lengths)
        marks: list[dict[str, float]] = []

        class Mark(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                index = len(marks) // chosen.steps
                lengths.variation = chosen.variation[min(index, len(chosen.variation) - 1)]
                marks.append({**clock, "time": time.perf_counter()})

        trainer.add_callback(Mark())
        trainer.train()
    gib = torch.cuda.max_memory_reserved() / 2**30 if gpu else 0.0
    measured: list[dict[str, float]] = []
    for index, variation in enumerate(chosen.variation):
        begin = marks[index * chosen.steps]
        end = marks[(index + 1) * chosen.steps]
        spent = {name: (end[name] - begin[name]) / chosen.steps for name in end}
        measured.append({"variation": variation, "rollouts": rows, "gib": gib, **spent})
    return measured


def random_policy(folder: Path, shape: str) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(POLICY)
    config.update({**SHAPES[shape], "max_position_embeddings": 32768})
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY).save_pretrained(folder)
    return folder


def build_trainer(way: str, policy: Path, tokenizer: Any, args: Any) -> Any:
    """Return a trainer that takes every turn for a call of `look_up`."""
    import trl.trainer.grpo_trainer as grpo_trainer
    from datasets import Dataset

    import cotune
    from cotune.environments.tools import ToolEnvironment
    from cotune.policy.codec import HFCodec
    from cotune.types import Calls, ToolCall

    function = {"type": "function", "function": CALL}
    message = {"role": "assistant", "content": "", "tool_calls": [function]}
    grpo_trainer.parse_response = lambda *_, **__: copy.deepcopy(message)
    HFCodec.read_calls = lambda *_: Calls((ToolCall(**CALL),), message=copy.deepcopy(message))
    if way == "cotune, waiting":
        ToolEnvironment.parallel_responses = 0
    unpack_weights()
    prompts = [[{"role": "user", "content": f"What does knoll mean, {row}?"}] for row in range(256)]
    common: dict[str, Any] = {
        "model": str(policy),
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": Dataset.from_dict({"prompt": prompts}),
        "reward_funcs": lambda completions, **_: [random.random() for _ in completions],
        "tools": [look_up],
    }
    if way == "TRL":
        return grpo_trainer.GRPOTrainer(**common)
    return cotune.JointTrainer(**common, method=cotune.Static(instruction="Answer in a word."))


class Lengths:
    """Draws the lengths of turns, in tokens.

    Attributes:
        variation: their coefficient of variation.
    """

    def __init__(self, variation: float, mean: int) -> None:
        self.variation = variation
        self._mean = mean
        self._draws = np.random.default_rng(0)

    def with_length(self, parameters: Any) -> Any:
        """Return vLLM's sampling parameters for a turn of a drawn length."""
        spread = np.log(1 + self.variation**2)
        drawn = self._draws.lognormal(np.log(self._mean) - spread / 2, np.sqrt(spread))
        tokens = int(np.clip(drawn, 1, LONGEST * self._mean))
        parameters = copy.copy(parameters)
        parameters.max_tokens = tokens
        parameters.ignore_eos = True
        parameters.stop_token_ids = []
        return parameters


def watch(trainer: Any, lengths: Lengths) -> dict[str, float]:
    """Give turns their lengths; count the seconds of rollouts, and vLLM's steps, seconds and tokens, as they happen."""
    clock = {"rollout_s": 0.0, "engine_s": 0.0, "engine_steps": 0.0, "tokens": 0.0}
    engine = trainer.vllm_generation.llm.llm_engine
    step = engine.step
    add_request = engine.add_request
    generate = trainer._generate

    def add(name: str, prompt: Any, parameters: Any, *others: Any, **named: Any) -> Any:
        return add_request(name, prompt, lengths.with_length(parameters), *others, **named)

    def timed_step() -> Any:
        started = time.perf_counter()
        outputs = step()
        clock["engine_s"] += time.perf_counter() - started
        clock["engine_steps"] += 1
        clock["tokens"] += sum(len(o.outputs[0].token_ids) for o in outputs if o.finished)
        return outputs

    def timed_generate(prompts: Any) -> Any:
        started = time.perf_counter()
        generated = generate(prompts)
        clock["rollout_s"] += time.perf_counter() - started
        return generated

    engine.add_request = add
    engine.step = timed_step
    trainer._generate = timed_generate
    return clock


if __name__ == "__main__":
    main()
