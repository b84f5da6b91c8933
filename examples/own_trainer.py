"""A trainer of your own with an evolving prompt, on an environment of cotune's.

python examples/own_trainer.py                      # INSPO on the bundled policy, a few steps
python examples/own_trainer.py --method p2o         # hints on hard questions, distilled
python examples/own_trainer.py --method static      # the same trainer with a fixed instruction
python examples/own_trainer.py --steps 6 --resume   # continue from the last checkpoint
"""

import argparse
import logging
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

import cotune

POLICY = "bundled:ladder"  # or any chat model's name
LIMITS = cotune.Limits(turns=1, turn_tokens=96, trajectory_tokens=98, prompt_tokens=224)


def environment_of(questions: int) -> cotune.Environment:
    """Return the environment, with a number of questions to train on."""
    options = cotune.LadderOptions(train=questions, validation=9, test=9)
    return cotune.LadderEnvironment(options)


def method_of(name: str) -> cotune.INSPO | cotune.P2O | cotune.Static:
    """Return the method, with numbers for a run of a few steps."""
    if name == "inspo":
        return cotune.INSPO(population_size=3, evolve_every=2, verification_tasks=4)
    if name == "p2o":
        hints = cotune.HintOptions(hard_set_min_count=2, dev_size=2, budget=16, beam=2)
        return cotune.P2O(hints=hints)
    return cotune.Static()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="GRPO with an evolving prompt.")
    parser.add_argument("--steps", type=int, default=3, help="rollout batches")
    parser.add_argument("--method", choices=("inspo", "p2o", "static"), default="inspo")
    parser.add_argument("--output", default="runs/own-trainer", help="the trainer's folder")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    parser.add_argument("--report-to", nargs="*", default=[], help="tensorboard, wandb, trackio")
    chosen = parser.parse_args(argv)
    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("cotune").setLevel(logging.INFO)  # shows the result of each evolution

    policy = cotune.policy_path(POLICY)
    model = AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    args = GRPOConfig(
        output_dir=chosen.output,
        max_steps=chosen.steps,
        per_device_train_batch_size=8,  # 2 questions × 4 rollouts
        num_generations=4,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=1,
        seed=chosen.seed,
        gradient_checkpointing=False,
        report_to=chosen.report_to or "none",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    # P²O evolves hints at the end of an epoch: four questions, two per step, make an epoch of two steps.
    questions = 4 if chosen.method == "p2o" else 64
    trainer = cotune.JointTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        method=method_of(chosen.method),
        environment=environment_of(questions),
        limits=LIMITS,
    )
    trainer.train(resume_from_checkpoint=chosen.resume)
    print("best instruction:", trainer.best_instruction)
    if trainer.best_hint:
        print("best hint:", trainer.best_hint)


if __name__ == "__main__":
    main()
