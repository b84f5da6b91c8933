"""The run folder of a method from `cotune.engines.trl.library_api` on a user's own GRPOTrainer."""

import logging
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerState
from trl import GRPOConfig

from cotune.config.run_checks import (
    check_context,
    check_prompt_texts,
    check_prompts,
    check_rewards,
)
from cotune.config.run_file import EvaluationConfig
from cotune.engines.best_policy import choice_of
from cotune.engines.evaluation import Validation
from cotune.engines.joint import Parts
from cotune.engines.trl.checkpoints import drop_torn
from cotune.engines.trl.checks import check_args, check_trl, steps_per_batch
from cotune.engines.trl.library_api import TrainerMethod
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.environments.instruction_config import InstructionConfig
from cotune.errors import ConfigError
from cotune.methods.method import RunShape
from cotune.policy.codec import HFCodec
from cotune.policy.tool_templates import check_turns
from cotune.run.console import LogListener
from cotune.run.json_files import write_atomic
from cotune.run.record import Record
from cotune.run.scores import Score
from cotune.utils.processes import launched_rank

_FIXED = ("seed", "environment", "instruction", "limits", "rewards", "strategy", "batch")
_TRAJECTORIES_EVERY = 10  # steps between files of training rollouts, as for a run file
_log = logging.getLogger("cotune")


def joint_run(
    method: TrainerMethod[Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig
) -> TRLJoint:
    """Build the joint run; see `TrainerMethod.for_trl`."""
    check_trl()
    check_args(args)
    shape = RunShape(
        group_size=args.num_generations or 1,
        group_field="GRPOConfig.num_generations",
        steps=args.max_steps // steps_per_batch(args),
        steps_field="GRPOConfig.max_steps, in rollout batches,",
    )
    try:
        method.method.check(method.options, shape)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if method.rewards is not None:
        method.rewards.trainer_state = TrainerState(max_steps=args.max_steps)
    check_rewards(method.rewards, method.environment, method.instruction, ("train",))
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # as the trainer does
    codec = HFCodec(tokenizer, cast("dict[str, Any] | None", args.chat_template_kwargs))
    check_turns(method.environment, codec, tokenizer)
    check_prompt_texts(method.environment, method.instruction, codec)
    check_prompts(
        method.environment,
        codec,
        method.instruction,
        method.limits,
        ("train",),
        strategy=method.method.kind,
    )
    folder = method.folder or Path(cast(str, args.output_dir)) / "cotune"
    if launched_rank() == 0:
        # The trainer resumes from the newest folder, even if it is incomplete.
        drop_torn(Path(cast(str, args.output_dir)))
    record = Record(
        folder,
        _config(method, tokenizer, args, shape.steps),
        fixed=_FIXED,
        listeners=[LogListener()],
        rollouts_every=_TRAJECTORIES_EVERY,
        total_steps=shape.steps,
    )
    parts = Parts(
        strategy=method.build_strategy(codec),
        environment=method.environment,
        llm=method.build_llm(record),
        record=record,
        limits=method.limits,
        seed=method.seed,
        rewards=method.rewards,
    )
    joint = TRLJoint(parts, tokenizer, args)
    instruction = InstructionConfig(text=method.instruction)
    strategy = method.options.kind
    joint.callbacks.append(_LibraryCallback(joint, strategy, instruction))
    return joint


def _config(
    method: TrainerMethod[Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig, steps: int
) -> dict[str, Any]:
    """Return run.yaml: the method's arguments, and the trainer settings that readers look for."""
    return {
        "library": "trl",
        "name": Path(cast(str, args.output_dir)).resolve().name,
        "policy": {"path": tokenizer.name_or_path},
        **method.describe(),
        "batch": {
            "rollouts": args.generation_batch_size,
            "group_size": args.num_generations,
            "mini_batches": steps_per_batch(args),
        },
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
    """Check limits against the model on construction of the trainer; close the run at the end."""

    def __init__(self, joint: TRLJoint, strategy: str, instruction: InstructionConfig) -> None:
        self._joint, self._strategy, self._instruction = joint, strategy, instruction

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        check_context(context, self._joint.parts.limits)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 0:  # the record has begun, or is another rank's
            name = Path(args.output_dir).resolve().name
            record = self._joint.parts.record
            record.event("run_started", 0, config=name, strategy=self._strategy)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._joint.begin_closing()
        self._joint.coordinator.on_rank_zero(self._finish)

    def _finish(self) -> None:
        """Choose the instruction on validation, if the trainer evaluates there; on rank 0."""
        joint, strategy = self._joint, self._joint.coordinator.strategy
        score: Score | None = None
        plain: Score | None = None
        if "validation" in joint.splits.values() and choice_of(joint) is not None:
            validation = Validation(EvaluationConfig(), self._instruction, lambda *_: None)
            score, plain = validation.during(joint, last=True)
        best = strategy.best_instruction_id(), strategy.best_prompt().instruction
        if score and plain and plain.em >= score.em:
            best, score = ("i0", cast(str, self._instruction.text)), plain
        self._keep(*best, score)

    def _keep(self, instruction_id: str, instruction: str, score: Score | None) -> None:
        """Write the best instruction to best/instruction.txt, and finish the record.

        Args:
            score: the instruction's on validation; None if it was not checked there.
        """
        record, step = self._joint.parts.record, self._joint.batches
        record.best_path.mkdir(exist_ok=True)
        write_atomic(record.best_path / "instruction.txt", instruction + "\n")
        em = None if score is None else score.em
        record.event(
            "run_finished", step, instruction_id=instruction_id, instruction=instruction, em=em
        )
        _log.info(
            "step %d: trained; best instruction %s, %s; run folder %s",
            step,
            instruction_id,
            f"{score.measure} {em:.3f} on validation" if score else "not checked on validation",
            record.path,
        )
        record.close()
