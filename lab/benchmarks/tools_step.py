"""Measure a step with tools against TRL's own tool loop, in CPU seconds of one thread.

    python benchmarks/tools_step.py --steps 16 --repeats 2
    python benchmarks/tools_step.py --policy runs/smollm2 --rows 4 --steps 3 --repeats 1

All arms train the policy of examples/three_tools, or another under its chat template, at learning
rate 0, so that they sample from the same distribution; they alternate in one process. "TRL" is
GRPOTrainer with `tools=`; "cotune" is the same trainer with cotune's rollout_func, and
"JointTrainer" also skips rollouts without advantage.

cotune answers a malformed call with an error that the policy can act on, where TRL ends the rollout.
Such a text is long for this policy's tokenizer and would widen each batch, so observations are cut to
14 tokens: the arms then differ in their work, not in the length of their texts. Pass
`--observation-tokens 500` to see both effects.
"""

import argparse
import contextlib
import io
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from overhead import StepClock
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import cotune
from cotune import policy_path

EXAMPLE = Path(__file__).parents[1] / "examples" / "three_tools"
sys.path.insert(0, str(EXAMPLE))
from task import INSTRUCTION, TOOLS, exact, questions  # noqa: E402

POLICY = EXAMPLE / "policy"
ARMS = ("TRL", "cotune", "JointTrainer")


def trainer_of(
    arm: str, policy: str, rows: int, steps: int, observation_tokens: int, folder: str
) -> GRPOTrainer:
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    # SmolLM2's own has no place for tools; its special tokens are the same.
    tokenizer.chat_template = AutoTokenizer.from_pretrained(POLICY).chat_template
    args = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=rows,
        num_generations=4,
        max_completion_length=256,
        learning_rate=0.0,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    if arm == "TRL":
        asked = questions().map(_with_instruction)
        return GRPOTrainer(
            model,
            args=args,
            processing_class=tokenizer,
            train_dataset=asked,
            reward_funcs=exact,
            tools=TOOLS,
        )
    joint = cotune.Static(
        environment=cotune.ToolEnvironment(TOOLS, cotune.tasks_from(questions()), INSTRUCTION),
        rewards=[exact],
        limits=cotune.Limits(
            turns=3,
            turn_tokens=64,
            observation_tokens=observation_tokens,
            trajectory_tokens=256,
            prompt_tokens=512,
        ),
    ).for_trl(tokenizer, args)
    trainer = GRPOTrainer if arm == "cotune" else cotune.JointTrainer
    return trainer(
        model,
        args=args,
        processing_class=tokenizer,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
    )


def _with_instruction(row: dict[str, Any]) -> dict[str, Any]:
    content = f"{INSTRUCTION}\n\n{row['prompt'][0]['content']}"
    return {"prompt": [{"role": "user", "content": content}]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default=str(POLICY), help="as in policy.path")
    parser.add_argument("--rows", type=int, default=32, help="rollouts of a step")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--observation-tokens", type=int, default=14)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    policy = policy_path(chosen.policy)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(chosen.repeats):
        for arm in ARMS:
            clock = StepClock()
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                trainer = trainer_of(
                    arm, policy, chosen.rows, chosen.steps, chosen.observation_tokens, folder
                )
                trainer.add_callback(clock)
                trainer.train()
            seconds[arm] += clock.seconds[1:]
    base = statistics.median(seconds["TRL"])
    for arm in ARMS:
        step = statistics.median(seconds[arm])
        Console().print(f"{arm:<13} {step:.3f} CPU s a step, {step / base:.2f} of TRL's")


if __name__ == "__main__":
    main()
