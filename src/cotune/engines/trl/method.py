"""A method of `cotune.engines.trl.own_trainer` on a user's own GRPOTrainer."""

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

from cotune.config.preflight import check_context, check_prompts, check_rewards, check_told
from cotune.engines.parts import Parts
from cotune.engines.trl.checkpoints import drop_torn
from cotune.engines.trl.checks import check_args, check_trl, steps_per_batch
from cotune.engines.trl.hooks import TRLJoint
from cotune.engines.trl.own_run import LibraryRun
from cotune.engines.trl.own_trainer import Method
from cotune.policy.codec import HFCodec
from cotune.policy.tool_templates import check_tools
from cotune.utils.processes import launched_rank


def joint_run(method: Method, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> TRLJoint:
    """See `Method.for_trl`."""
    check_trl()
    check_args(args)
    method.check_group(args.num_generations or 1)
    if method.rewards is not None:
        method.rewards.trainer_state = TrainerState(max_steps=args.max_steps)
    check_rewards(method.rewards, method.environment, method.instruction, ("train",))
    codec = HFCodec(tokenizer, cast("dict[str, Any] | None", args.chat_template_kwargs))
    check_tools(method.environment, codec, tokenizer)
    check_told(method.environment, method.instruction, codec)
    check_prompts(
        method.environment,
        codec,
        method.instruction,
        method.limits,
        ("train",),
        strategy=method.kind,
    )
    steps = args.max_steps // steps_per_batch(args)
    folder = method.folder or Path(cast(str, args.output_dir)) / "cotune"
    if launched_rank() == 0:
        # The trainer resumes from the newest folder, whole or not.
        drop_torn(Path(cast(str, args.output_dir)))
    run = LibraryRun(folder, _config(method, tokenizer, args, steps), steps)
    parts = Parts(
        strategy=method.build_strategy(codec),
        environment=method.environment,
        llm=method.build_llm(run),
        journal=run,
        meter=run,
        limits=method.limits,
        seed=method.seed,
        rewards=method.rewards,
    )
    joint = TRLJoint(parts, tokenizer, args)
    joint.callbacks.append(_LibraryCallback(joint, run))
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


class _LibraryCallback(TrainerCallback):
    """Checks limits against the model when the trainer is made; closes the run when it has trained."""

    def __init__(self, joint: TRLJoint, run: LibraryRun) -> None:
        self._joint, self._run = joint, run

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **_: Any,
    ) -> None:
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        check_context(context, self._joint.parts.limits)

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
