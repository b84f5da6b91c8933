"""A method of `cotune.library` on a user's own GRPOTrainer."""

import os
from pathlib import Path
from typing import Any, cast

from transformers import (
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig

from cotune.engines.codec import HFCodec
from cotune.engines.trl.checkpoints import drop_torn
from cotune.engines.trl.checks import check_args, check_trl, steps_per_batch
from cotune.engines.trl.joint import Parts, TRLJoint
from cotune.library import Method
from cotune.library_run import LibraryRun
from cotune.preflight import check_prompts


def joint_run(method: Method, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> TRLJoint:
    """See `Method.for_trl`."""
    check_trl()
    check_args(args)
    check_prompts(
        method.environment,
        HFCodec(tokenizer),
        method.instruction,
        method.limits,
        ("train",),
        strategy=method.kind,
    )
    steps = args.max_steps // steps_per_batch(args)
    folder = method.folder or Path(cast(str, args.output_dir)) / "cotune"
    if int(os.environ.get("RANK", "0")) == 0:
        # The trainer resumes from the newest folder, whole or not.
        drop_torn(Path(cast(str, args.output_dir)))
    run = LibraryRun(folder, _config(method, tokenizer, args, steps), steps)
    parts = Parts(
        strategy=method.build_strategy(HFCodec(tokenizer)),
        environment=method.environment,
        llm=method.build_llm(run),
        journal=run,
        meter=run,
        limits=method.limits,
        seed=method.seed,
    )
    joint = TRLJoint(parts, tokenizer, args)
    joint.callbacks.append(_Finish(joint, run))
    return joint


def _config(
    method: Method, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig, steps: int
) -> dict[str, Any]:
    """run.yaml: what the method was given, and the trainer's numbers that a reader asks for."""
    return {
        "library": "trl",
        "name": Path(cast(str, args.output_dir)).resolve().name,
        "policy": {"path": tokenizer.name_or_path},
        **method.describe(),
        "batch": {"rollouts": args.generation_batch_size, "group_size": args.num_generations},
        "training": {
            "steps": steps,
            "mini_batches": steps_per_batch(args),
            "learning_rate": args.learning_rate,
            "temperature": args.temperature,
            "kl": args.beta,
            "clip": args.epsilon,
        },
    }


class _Finish(TrainerCallback):
    """Writes down the run's best instruction when training ends."""

    def __init__(self, joint: TRLJoint, run: LibraryRun) -> None:
        self._joint, self._run = joint, run

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        coordinator = self._joint.coordinator
        if coordinator.comm.rank == 0:
            strategy = coordinator.strategy
            self._run.finish(
                self._joint.batches,
                strategy.best_instruction_id(),
                strategy.best_prompt().instruction,
            )
