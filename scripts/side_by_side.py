"""Time GRPO with a tool and vLLM, side by side: TRL's own trainer, and cotune's with episodes that wait or do not.

    python scripts/side_by_side.py --shape tiny
    python scripts/side_by_side.py --shape 0.5B --questions 16 --turn-tokens 256

The policy has random weights in the given shape. Its turns end by chance, so their lengths have a coefficient of
variation of one; every turn but the last counts as a call of a tool that takes between 20 and 500 ms. Each way runs in
a process of its own; its first step, which compiles and warms up, is not counted. TRL's AsyncGRPOTrainer is not among
them: it sends weights over NCCL to a server on another GPU.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[*SHAPES], default="tiny")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=48, help="mean length of a turn")
    parser.add_argument("--vllm-memory", type=float, default=0.3)
    parser.add_argument("--way", choices=WAYS, help="run this way only, in this process")
    chosen = parser.parse_args()
    if chosen.way:
        print(json.dumps(measure(chosen)))
        return
    print(
        "| way | rollouts a second | generated tokens a second | step, s | rollouts | in vLLM | rows of vLLM | GiB |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")  # fmt: skip
    for way in WAYS:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {way} | {row['rollouts'] / row['step_s']:.2f} | {row['tokens'] / row['step_s']:.0f} | {row['step_s']:.1f} | "
            f"{row['rollout_s'] / row['step_s']:.0%} | {row['engine_s'] / row['step_s']:.0%} | {row['rows']:.1f} | {row['gib']:.1f} |",
            flush=True,
        )  # fmt: skip


def look_up(word: str) -> str:
    """Says what a word means.

    Args:
        word: in lower case.
    """
    time.sleep(random.uniform(0.02, 0.5))
    return "a small hill"


def measure(chosen: argparse.Namespace) -> dict[str, float]:
    """Train some steps in one way; return the means of a step, the first left out."""
    import torch
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig

    with tempfile.TemporaryDirectory() as folder:
        policy = random_policy(Path(folder) / "policy", chosen)
        rows = chosen.questions * chosen.group
        gpu = torch.cuda.is_available()
        args = GRPOConfig(
            output_dir=f"{folder}/run",
            max_steps=chosen.steps,
            per_device_train_batch_size=rows,
            num_generations=chosen.group,
            max_completion_length=chosen.turns * (8 * chosen.turn_tokens),
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
            vllm_max_model_length=1024 + chosen.turns * (8 * chosen.turn_tokens),
        )
        trainer = build_trainer(chosen.way, policy, AutoTokenizer.from_pretrained(policy), args)
        clock = watch(trainer)
        marks: list[dict[str, float]] = []

        class Mark(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                marks.append({**clock, "time": time.perf_counter()})

        trainer.add_callback(Mark())
        trainer.train()
    steps = len(marks) - 1
    spent = {name: (marks[-1][name] - marks[0][name]) / steps for name in marks[0]}
    return {
        "rollouts": rows,
        "tokens": spent["tokens"],
        "step_s": spent["time"],
        "rollout_s": spent["rollout_s"],
        "engine_s": spent["engine_s"],
        "rows": spent["tokens"] / spent["engine_steps"],
        "gib": torch.cuda.max_memory_reserved() / 2**30 if gpu else 0.0,
    }


def random_policy(folder: Path, chosen: argparse.Namespace) -> Path:
    """Write a policy with random weights; a token ends a turn with a chance of one in `turn_tokens`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(POLICY)
    config.update({**SHAPES[chosen.shape], "max_position_embeddings": 32768})
    config.layer_types = ["full_attention"] * config.num_hidden_layers
    model = AutoModelForCausalLM.from_config(config)
    ends = round(config.vocab_size / chosen.turn_tokens)
    others = range(config.vocab_size - ends + 1, config.vocab_size)
    model.generation_config = GenerationConfig(
        eos_token_id=[config.eos_token_id, *others], pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY).save_pretrained(folder)
    return folder


def build_trainer(way: str, policy: Path, tokenizer: Any, args: Any) -> Any:
    """Return a trainer that takes every turn for a call of `look_up`."""
    import trl.trainer.grpo_trainer as grpo_trainer
    from datasets import Dataset

    import cotune
    import cotune.rollout.drivers as drivers
    from cotune.policy.codec import HFCodec
    from cotune.types import Calls, ToolCall

    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": CALL}],
    }
    grpo_trainer.parse_response = lambda *_, **__: json.loads(json.dumps(message))
    HFCodec.read_calls = lambda *_: Calls((ToolCall(**CALL),), message=message)
    if way == "cotune, waiting":
        drivers.parallel_responses = lambda environment: 0
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
    method = cotune.Static(instruction="Answer in a word.")
    return cotune.JointTrainer(**common, method=method)


def watch(trainer: Any) -> dict[str, float]:
    """Count the seconds of rollouts, and vLLM's steps with their seconds and tokens, as they happen."""
    clock = {"rollout_s": 0.0, "engine_s": 0.0, "engine_steps": 0.0, "tokens": 0.0}
    engine = trainer.vllm_generation.llm.llm_engine
    step = engine.step
    generate = trainer._generate

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

    engine.step = timed_step
    trainer._generate = timed_generate
    return clock


if __name__ == "__main__":
    main()
