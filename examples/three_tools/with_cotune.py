"""GRPO with three tools, and an instruction that evolves with the policy.

python examples/three_tools/with_cotune.py
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from task import INSTRUCTION, TOOLS, exact, questions
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

import cotune


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default=str(Path(__file__).with_name("policy")))
    parser.add_argument("--output", default="runs/trl")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--llm", default="gpt-4.1", help="a model, or a file of texts to propose")
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
    trainer = cotune.JointTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        train_dataset=questions(),
        reward_funcs=exact,
        tools=TOOLS,
        method=cotune.INSPO(
            llm=chosen.llm,
            instruction=INSTRUCTION,
            population_size=4,
            evolve_every=5,
            verification_tasks=8,
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
