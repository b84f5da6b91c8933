"""Your own GRPOTrainer with an instruction that evolves: the four arguments marked below.

python examples/own_trainer.py                      # INSPO on the bundled policy, a few steps
python examples/own_trainer.py --method static      # the same trainer with a fixed instruction
python examples/own_trainer.py --steps 6 --resume   # goes on from the last checkpoint
"""

import argparse
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import cotune
from cotune.policies import policy_path


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="GRPO with an instruction that evolves.")
    parser.add_argument("--steps", type=int, default=3, help="rollout batches")
    parser.add_argument("--method", choices=("inspo", "static"), default="inspo")
    parser.add_argument("--output", default="runs/own-trainer", help="the trainer's folder")
    parser.add_argument("--resume", action="store_true", help="from the last checkpoint")
    chosen = parser.parse_args(argv)

    policy = policy_path("bundled:geo")  # or any chat model's name
    model = AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    args = GRPOConfig(
        output_dir=chosen.output,
        max_steps=chosen.steps,
        per_device_train_batch_size=8,  # 2 questions × 4 rollouts
        num_generations=4,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        top_k=0,
        shuffle_dataset=False,
        logging_steps=1,
        save_steps=1,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    environment = cotune.GeoEnvironment(cotune.GeoOptions(train=64, validation=9, test=9))
    limits = cotune.Limits(
        turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
    )
    if chosen.method == "inspo":
        options = cotune.InspoOptions(population_size=3, evolve_every=2, verification_tasks=4)
        method = cotune.INSPO(environment=environment, limits=limits, options=options)
    else:
        method = cotune.Static(environment=environment, limits=limits)
    joint = method.for_trl(tokenizer, args)
    trainer = GRPOTrainer(
        model,
        args=args,
        processing_class=tokenizer,
        train_dataset=joint.dataset,  # 1
        rollout_func=joint.rollout_func,  # 2
        reward_funcs=joint.reward_funcs,  # 3
        callbacks=joint.callbacks,  # 4
    )
    trainer.train(resume_from_checkpoint=chosen.resume)
    print("best instruction:", joint.coordinator.strategy.best_prompt().instruction)


if __name__ == "__main__":
    main()
