"""GRPO with three tools, with TRL alone: the script that `with_cotune.py` is based on.

python examples/three_tools/plain_trl.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from task import TOOLS, exact, questions
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default=str(Path(__file__).with_name("policy")))
    parser.add_argument("--output", default="runs/trl")
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args(argv)

    model = AutoModelForCausalLM.from_pretrained(chosen.policy, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(chosen.policy)
    args = GRPOConfig(
        output_dir=chosen.output,
        max_steps=chosen.steps,
        per_device_train_batch_size=32,  # 8 questions × 4 rollouts
        num_generations=4,
        max_completion_length=256,
        learning_rate=3e-5,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    trainer = GRPOTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        train_dataset=questions(),
        reward_funcs=exact,
        tools=TOOLS,
    )
    trainer.train()


if __name__ == "__main__":
    main()
