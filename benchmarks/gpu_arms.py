"""Time the rollouts and updates of some GRPO steps on a policy with random weights.

It is a Qwen2 with the bundled policy's tokenizer. Its text is random and never stops, so every turn has
its full length, whichever way it is sampled.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.library_api import Static
from cotune.policy.policy_files import policy_path
from cotune.policy.sampling import GenerateSampler
from cotune.types import Limits
from cotune.worlds.geo import GeoEnvironment, GeoOptions

SHAPES: dict[str, dict[str, Any]] = {
    "0.5B": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "3B": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
    },
    "tiny": {
        "vocab_size": 2048,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}
"""Numbers of config.json; 0.5B and 3B are Qwen2.5's."""
SAMPLERS = ("cached", "generate", "vllm")
"""KV cache kept across turns; `model.generate` for each turn; vLLM in the trainer's process."""

LIMITS = Limits(
    turns=3, turn_tokens=256, observation_tokens=128, trajectory_tokens=1024, prompt_tokens=512
)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of an arm.

    Attributes:
        steps: the first includes set-up and does not count.
        questions, group_size: per step.
        micro_batch: rollouts of one forward and backward pass.
        gpu_memory: vLLM's share of the GPU.
    """

    steps: int = 3
    questions: int = 16
    group_size: int = 8
    micro_batch: int = 8
    gpu_memory: float = 0.4
    limits: Limits = LIMITS


@dataclass(frozen=True)
class Figures:
    """The figures of an arm: medians over its steps but the first.

    Attributes:
        parameters: of the policy.
        rollout_tokens: tokens written in a step.
        rollout_rate: the same per second.
        update_tokens: tokens of the prompts and completions in a step's update.
        update_rate: the same per second, optimizer step included.
        peak_gib: peak memory of torch on the GPU; 0 without one.
    """

    parameters: int
    rollout_tokens: float
    rollout_rate: float
    update_tokens: float
    update_rate: float
    peak_gib: float


def make_policy(folder: Path, shape: str, device: str) -> None:
    """Write random weights and the tokenizer as a Hugging Face folder; bfloat16 on a GPU."""
    tokenizer = AutoTokenizer.from_pretrained(policy_path("bundled:geo"))
    torch.manual_seed(0)
    config = Qwen2Config(
        **SHAPES[shape],
        max_position_embeddings=32768,
        rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.device(device):
        model: Any = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model
    if device == "cuda":
        torch.cuda.empty_cache()  # the arms have the whole GPU


def run_file(policy: Path, load: Load) -> dict[str, Any]:
    """Return the fields of a run file with this load, for `cotune plan`."""
    return {
        "name": "gpu",
        "output": str(policy.with_name("run")),
        "policy": {"path": str(policy)},
        "environment": {"kind": "geo", "train": load.questions, "validation": 3, "test": 3},
        "limits": asdict(load.limits),
        "strategy": {"kind": "static"},
        "training": {
            "steps": load.steps,
            "questions_per_step": load.questions,
            "group_size": load.group_size,
            "mini_batches": 1,
            "micro_batch_size": load.micro_batch,
            "kl": 0.001,  # random text earns nothing; without a KL such groups are not trained on
        },
        "evaluation": {"every": 0, "before": False},
    }


def every_other(completions: list[Any], **_: Any) -> list[float]:
    """Return rewards that differ within every group: groups of equal rewards are not trained on."""
    return [float(i % 2) for i in range(len(completions))]


class Clock(TrainerCallback):
    """Seconds of every optimizer step, rollouts included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = now()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(now() - self._begun)


def now() -> float:
    """Return the time in seconds once the GPU has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(policy: Path, out: Path, sampler: str, load: Load, device: str) -> Figures:
    """Train the policy of a folder for `load.steps` and return the figures."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype="auto")
    args = _arguments(out, load, device, sampler == "vllm")
    environment = GeoEnvironment(GeoOptions(train=load.questions, validation=3, test=3))
    method = Static(environment=environment, limits=load.limits, rewards=[every_other])
    joint = method.for_trl(tokenizer, args)
    clock = Clock()
    rollouts: list[tuple[int, float]] = []
    updates: list[int] = []

    def timed(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        begun = now()
        output = joint.rollout_func(prompts, trainer)
        rollouts.append((sum(map(sum, output["env_mask"])), now() - begun))
        updates.append(sum(map(len, output["prompt_ids"] + output["completion_ids"])))
        return output

    trainer = JointTrainer(
        model,
        args=args,
        train_dataset=joint.dataset,
        processing_class=tokenizer,
        rollout_func=timed,
        reward_funcs=joint.reward_funcs,
        callbacks=[*joint.callbacks, clock],
    )
    trainer.remove_callback(PrinterCallback)
    if sampler == "generate":
        pad: Any = tokenizer.pad_token_id
        joint.coordinator.sampler = GenerateSampler(joint.policy, joint.codec, pad)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    later = range(1, load.steps)
    return Figures(
        parameters=model.num_parameters(),
        rollout_tokens=median(rollouts[i][0] for i in later),
        rollout_rate=median(rollouts[i][0] / rollouts[i][1] for i in later),
        update_tokens=median(updates[i] for i in later),
        update_rate=median(updates[i] / (clock.seconds[i] - rollouts[i][1]) for i in later),
        peak_gib=torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0,
    )


def _arguments(out: Path, load: Load, device: str, use_vllm: bool) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(out),
        max_steps=load.steps,
        per_device_train_batch_size=load.micro_batch,
        gradient_accumulation_steps=load.questions * load.group_size // load.micro_batch,
        num_generations=load.group_size,
        max_completion_length=load.limits.trajectory_tokens,
        loss_type="grpo",
        beta=0.0,
        top_k=0,
        shuffle_dataset=False,
        bf16=device == "cuda",
        use_cpu=device == "cpu",
        use_vllm=use_vllm,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=load.gpu_memory,
        vllm_max_model_length=load.limits.prompt_tokens + load.limits.trajectory_tokens,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
