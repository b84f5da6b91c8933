"""Rollouts with vLLM in the trainer's process against the sampler without it, on one GPU.

    python benchmarks/vllm_gpu.py --steps 2

A Qwen2 of the shape of Qwen2.5-0.5B with random weights, under the bundled policy's tokenizer: what
it writes means nothing and stops nowhere, so every turn has its full length in both. Each arm trains
in a process of its own. Without a GPU or vllm it says so and ends.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from cotune.engines.trl.trainer import JointTrainer
from cotune.environments.geo import GeoEnvironment, GeoOptions
from cotune.library import Static
from cotune.policies import policy_path
from cotune.records import Limits

LIMITS = Limits(
    turns=3, turn_tokens=256, observation_tokens=128, trajectory_tokens=1024, prompt_tokens=512
)
QWEN = {
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}


def make_policy(folder: Path, shape: dict[str, Any] | None = None) -> None:
    """Random weights and the tokenizer, as a Hugging Face folder."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    torch.manual_seed(0)
    config = Qwen2Config(
        **(QWEN | (shape or {})),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measure(policy: Path, out: Path, use_vllm: bool, args: argparse.Namespace) -> list[Any]:
    """Trains; (own tokens, seconds) of each step's rollouts."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype="auto")
    cuda = torch.cuda.is_available()
    rows = args.questions * args.group_size
    config = GRPOConfig(
        output_dir=str(out),
        max_steps=args.steps,
        per_device_train_batch_size=args.group_size,
        gradient_accumulation_steps=rows // args.group_size,
        num_generations=args.group_size,
        max_completion_length=LIMITS.trajectory_tokens,
        loss_type="grpo",
        top_k=0,
        shuffle_dataset=False,
        bf16=cuda,
        use_cpu=not cuda,
        use_vllm=use_vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=args.gpu_memory,
        vllm_max_model_length=LIMITS.prompt_tokens + LIMITS.trajectory_tokens,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    environment = GeoEnvironment(GeoOptions(train=args.questions, validation=3, test=3))
    joint = Static(environment=environment, limits=LIMITS).for_trl(tokenizer, config)
    found: list[Any] = []

    def timed(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        begun = time.perf_counter()
        output = joint.rollout_func(prompts, trainer)
        found.append((sum(map(sum, output["env_mask"])), time.perf_counter() - begun))
        return output

    trainer = JointTrainer(
        model,
        args=config,
        train_dataset=joint.dataset,
        processing_class=tokenizer,
        rollout_func=timed,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
    )
    trainer.train()
    return found


def in_own_process(policy: Path, arm: str, args: argparse.Namespace) -> list[Any]:
    """`measure` where no other arm holds memory of the GPU."""
    given = [f"--{name.replace('_', '-')}={value}" for name, value in vars(args).items() if value]
    command = [sys.executable, __file__, *given, f"--arm={arm}", f"--policy={policy}"]
    subprocess.run(command, check=True)
    return json.loads(_result(policy, arm).read_text())


def _result(policy: Path, arm: str) -> Path:
    return policy.with_name(f"{arm}.json")


def missing() -> str:
    """Why nothing can be measured here; "" if it can."""
    if not torch.cuda.is_available():
        return "no GPU: nothing was measured"
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed (pip install 'trl[vllm]'): nothing was measured"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--gpu-memory", type=float, default=0.4, help="vLLM's share")
    parser.add_argument("--arm", choices=("vllm", "cached"), help=argparse.SUPPRESS)
    parser.add_argument("--policy", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if why := missing():
        print(why)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.arm:
            found = measure(args.policy, Path(folder), args.arm == "vllm", args)
            _result(args.policy, args.arm).write_text(json.dumps(found))
            return
        policy = Path(folder) / "policy"
        make_policy(policy)
        for arm in ("cached", "vllm"):
            for step, (tokens, seconds) in enumerate(in_own_process(policy, arm, args), 1):
                rate = tokens / seconds
                print(f"{arm:6} step {step}: {tokens} tokens in {seconds:.1f} s, {rate:.0f}/s")


if __name__ == "__main__":
    main()
