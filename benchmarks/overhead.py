"""Measure the cost of the joint layer against a plain GRPOTrainer on the same rollouts, in CPU seconds.

    python benchmarks/overhead.py --steps 6 --repeats 3

Both arms train the bundled policy from the same weights with the same draws, so step t of one does
the same arithmetic as step t of the other; they alternate in one process. "Plain" is GRPOTrainer with
a rollout_func that only runs episodes; "cotune" adds coordinator, strategy, ledger, run folder and
callback. The last line is the time of the layer itself: cotune's rollout_func without sampling and
environment.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import TrainerCallback
from trl import GRPOTrainer

from cotune.cli.library_settings import quiet_libraries
from cotune.config.build import build_environment
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.joint import Parts
from cotune.engines.trl.run_file_setup import grpo_config, load_policy
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.methods.static import StaticStrategy
from cotune.policy.codec import HFCodec
from cotune.policy.sampling import CachedSampler
from cotune.rollout.coordinator import stable_seed
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.rollout.task_order import TaskOrder
from cotune.run.journal import RunJournal
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Sampling


class StepClock(TrainerCallback):
    """CPU seconds of every optimizer step of this process."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begun = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self._begun)


def run_file(steps: int, seed: int, folder: Path) -> RunConfig:
    return parse_config(
        {
            "name": "overhead",
            "output": str(folder / "run"),
            "seed": seed,
            "environment": {"kind": "geo", "test": 3, "validation": 3},
            "limits": {
                "turn_tokens": 64,
                "observation_tokens": 200,
                "trajectory_tokens": 640,
                "prompt_tokens": 384,
            },
            "strategy": {"kind": "static"},
            "training": {
                "steps": steps,
                "questions_per_step": 16,
                "mini_batches": 1,
                "micro_batch_size": 40,
                "learning_rate": 1e-4,
                "schedule": "constant",
                "warmup": 0,
                "kl": 0,
                "save_every": 0,
            },
        },
        "benchmarks/overhead.py",
    )


def trainer_of(
    config: RunConfig, folder: Path, dataset: Any, rollout: Any, reward: Any, callbacks: list[Any]
) -> GRPOTrainer:
    model, tokenizer = load_policy(config.policy)
    return GRPOTrainer(
        model,
        args=grpo_config(config, folder),
        train_dataset=dataset,
        processing_class=tokenizer,
        rollout_func=rollout,
        reward_funcs=reward,
        callbacks=callbacks,
    )


def plain(config: RunConfig, folder: Path) -> list[float]:
    """Train with a rollout_func that only runs episodes; return the CPU seconds of each step."""
    from datasets import Dataset
    from trl.models.utils import unwrap_model_for_generation

    environment = build_environment(config.environment, config.dataset, config.instruction)
    prompt = Prompt(environment.initial_instruction)
    training = config.training
    order = TaskOrder(environment.tasks("train"), training.questions_per_step, config.seed)
    rows = [order.at(i) for i in range(training.steps * training.questions_per_step)]
    calls = 0

    def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        codec = HFCodec(trainer.processing_class)
        tasks = [order.by_id[p] for p in prompts]
        group = training.group_size
        assignments = [Assignment(t, prompt, prompt, "i0", i // group) for i, t in enumerate(tasks)]
        episodes = new_episodes(assignments, environment, codec, config.limits)
        seed = stable_seed(config.seed, "train", calls, 1)
        sampler = CachedSampler(
            lambda: unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator),
            codec,
            trainer.processing_class.pad_token_id,
        )
        session = sampler.open(Sampling(training.temperature, environment.stop, seed))
        trajectories = run_episodes(episodes, environment, session)
        session.close()
        return {
            "prompt_ids": [list(t.prompt_ids) for t in trajectories],
            "completion_ids": [list(t.completion_ids) for t in trajectories],
            "logprobs": None,
            "env_mask": [list(t.mask) for t in trajectories],
            "score": [t.reward for t in trajectories],
        }

    def reward(score: list[float], **_: Any) -> list[float]:
        return score

    clock = StepClock()
    dataset = Dataset.from_dict({"prompt": rows})
    trainer_of(config, folder, dataset, rollout, reward, [clock]).train()
    return clock.seconds


def joint(config: RunConfig, folder: Path) -> tuple[list[float], list[float]]:
    """Train through cotune; return the CPU seconds of each step, and those of the layer itself."""
    environment = build_environment(config.environment, config.dataset, config.instruction)
    run = RunDir.create(config.output, {"name": config.name})
    journal = RunJournal(run, Console(quiet=True), config.training.steps, 10)
    layer: list[float] = []
    with Ledger(run.ledger_path) as ledger:
        parts = Parts(
            strategy=StaticStrategy(environment.initial_instruction),
            environment=environment,
            llm=None,  # pyright: ignore[reportArgumentType]  a static strategy asks nobody
            journal=journal,
            meter=ledger,
            limits=config.limits,
            seed=config.seed,
        )
        _, tokenizer = load_policy(config.policy)
        one = TRLJoint(parts, tokenizer, grpo_config(config, folder))
        spent = {"inside": 0.0}
        share = one.coordinator._roll_out_here

        def timed_share(*args: Any) -> Any:
            begun = time.process_time()
            result = share(*args)
            spent["inside"] += time.process_time() - begun
            return result

        one.coordinator._roll_out_here = timed_share  # pyright: ignore[reportAttributeAccessIssue]

        def rollout(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
            begun, spent["inside"] = time.process_time(), 0.0
            output = one.rollout_func(prompts, trainer)
            layer.append(time.process_time() - begun - spent["inside"])
            return output

        clock = StepClock()
        trainer_of(
            config, folder, one.dataset, rollout, one.reward_funcs, [*one.callbacks, clock]
        ).train()
    return clock.seconds, layer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ratios: list[float] = []
    shares: list[float] = []
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            config = run_file(args.steps, repeat, folder)
            quiet_libraries(config)
            order = ("plain", "joint") if repeat % 2 == 0 else ("joint", "plain")
            found: dict[str, Any] = {}
            for arm in order:
                found[arm] = {"plain": plain, "joint": joint}[arm](config, folder / arm)
            joint_steps, layer = found["joint"]
            # The first step of each arm pays for lazy set-up.
            ratios += [j / p for j, p in zip(joint_steps[1:], found["plain"][1:], strict=True)]
            shares += [spent / step for spent, step in zip(layer[1:], joint_steps[1:], strict=True)]
            print(
                f"repeat {repeat}: plain {statistics.median(found['plain'][1:]):.2f} CPU s a step, "
                f"cotune {statistics.median(joint_steps[1:]):.2f}",
                flush=True,
            )
    print(f"cotune / plain, median over {len(ratios)} steps: {statistics.median(ratios):.3f}")
    print(f"the joint layer itself: {statistics.median(shares):.2%} of a step's CPU seconds")


if __name__ == "__main__":
    main()
