"""One joint run on TRL's GRPOTrainer: the rollouts of each batch, its trainer's events, its trackers, its state.

TRL calls `rollout_func` once for each rollout batch; a strategy's steps count these calls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainerCallback, TrainerState
from transformers.integrations.integration_utils import (
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)
from transformers.trainer_utils import SaveStrategy, rotate_checkpoints
from trl import GRPOConfig

from cotune.engines.joint import Joint, Parts, world
from cotune.engines.trl.checks import check_strategy, check_trainer, steps_per_batch
from cotune.engines.trl.sharding import check_spread, gather, spread, whole_weights
from cotune.engines.trl.vllm_sampler import (
    VLLMSampler,
    engine_context,
    sampling_logprobs,
    seed_vllm,
)
from cotune.errors import ConfigError
from cotune.policy.local_policy import context_length
from cotune.policy.sampling import avoid_cudnn_attention, policy_sampler
from cotune.protocols import State
from cotune.rewards.functions import RewardFunctions
from cotune.rollout.coordinator import Batch
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import load_state, save_state
from cotune.types import StopReason, Trajectory
from cotune.utils.progress import report

if TYPE_CHECKING:
    from cotune.engines.trl.policy_update import PolicyUpdate

Hook = Callable[["TRLJoint", int], None]
"""Called on rank 0 before a step's rollouts, with the number of steps trained so far."""


class TRLJoint(Joint):
    """Run a strategy on one GRPOTrainer.

    Args:
        args: the trainer's configuration, checked by `checks.check_args`.
        before_rollout: a hook before each step's rollouts, such as an evaluation.
        shuffle: whether each epoch has an order of its own; else it is the data's.
        reward_names: names of `Trajectory.parts`, each of which gets a reward function of TRL's, for its metrics
            and weights. Without names one function returns the environment's scores.

    Attributes:
        dataset, rollout_func, reward_funcs, callbacks: arguments for GRPOTrainer; the data set has one row per
            question of every step, in training order.
        batch: the last training batch, of all ranks; `first_row` is this rank's first rollout in it.
        trainer: the trainer whose policy is sampled; set by `bind`.
    """

    trainer: "PolicyUpdate"
    batch: Batch
    first_row: int = 0

    def __init__(
        self,
        parts: Parts,
        args: GRPOConfig,
        before_rollout: Hook | None = None,
        *,
        shuffle: bool = True,
        reward_names: Sequence[str] = (),
    ) -> None:
        check_strategy(args, parts.strategy)
        avoid_cudnn_attention()  # also if vLLM samples
        self.args = args
        self.codec = parts.codec
        self.tokenizer = parts.codec.tokenizer
        self.before_rollout = before_rollout
        group_size = cast(int, args.num_generations)
        questions = cast(int, args.generation_batch_size) // group_size
        tasks = parts.environment.tasks("train")
        order = TaskOrder(tasks, questions, parts.settings.seed, shuffle=shuffle)
        total_batches = -(-args.max_steps // steps_per_batch(args))
        super().__init__(parts, order, total_batches, group_size, args.temperature)
        self.coordinator.gather = lambda: whole_weights(self.unwrapped)
        ids = [order.at(i) for i in range(total_batches * questions)]
        self.dataset = Dataset.from_dict({"prompt": ids})
        parts_of_reward = {name: name for name in reward_names} or {"reward": ""}
        self.reward_funcs: list[Any] = [
            self._reward_function(name, part, logs=index == 0)
            for index, (name, part) in enumerate(parts_of_reward.items())
        ]
        self.callbacks: list[TrainerCallback] = [CheckpointCallback(self), ResumedRate()]
        self.metrics: dict[str, float] = {}
        self._pending: dict[str, float] = {}
        self._clipped = 0.0

    # ---- the trainer and its policy

    def bind(self, trainer: "PolicyUpdate") -> None:
        """Bind the trainer whose policy is sampled."""
        check_trainer(trainer, self.parts.strategy)
        self.trainer = trainer
        seed_vllm(trainer, self.parts.settings.seed)
        coordinator = self.coordinator
        coordinator.comm = world()  # the trainer has connected the processes
        context = self._context_tokens()
        coordinator.settings = replace(coordinator.settings, context_tokens=context)
        if trainer.use_vllm:
            coordinator.sampler = VLLMSampler(trainer, self.codec, coordinator.comm, context)
        else:
            casts: Any = trainer.accelerator.autocast
            coordinator.sampler = policy_sampler(self.policy, self.codec, self.tokenizer, casts)

    @property
    def state_folder(self) -> Path:
        """Return the folder of the checkpoints."""
        return Path(cast(str, self.args.output_dir))

    @property
    def unwrapped(self) -> PreTrainedModel:
        """Return this process's copy of the current policy; under FSDP2 its weights are shards."""
        wrapped = self.trainer.model_wrapped
        return cast(PreTrainedModel, self.trainer.accelerator.unwrap_model(wrapped))

    @contextmanager
    def policy(self) -> Iterator[PreTrainedModel]:
        """Yield the current policy, unwrapped, whole and in evaluation mode; call on all ranks."""
        # TRL's context for generation would reset gradient checkpointing with different arguments.
        model = self.unwrapped
        training = model.training
        model.eval()
        try:
            with gather(model):
                yield model
        finally:
            model.train(training)

    def weights_replaced(self) -> None:
        """Call after loading weights into the policy without the trainer; vLLM reloads them."""
        if self.trainer.use_vllm:
            self.trainer._last_loaded_step = -1  # the value before any weights were sent

    def _context_tokens(self) -> int | None:
        """Return the context length in tokens: the policy's limit, or vLLM's if it is lower."""
        context = context_length(self.unwrapped.config)
        if not self.trainer.use_vllm:
            return context
        distillation = self.coordinator.strategy.distillation
        engine = engine_context(self.trainer, distillation, self.coordinator.comm)
        return engine if context is None else min(context, engine)

    # ---- a step

    def rollout_func(self, prompts: list[Any], trainer: "PolicyUpdate") -> dict[str, Any]:
        """Roll out a training batch for TRL: `prompts` are this rank's task ids, repeated per group."""
        if isinstance(self.parts.rewards, RewardFunctions):
            self.parts.rewards.trainer_state = trainer.state
        all_prompts = [p for share in self.coordinator.comm.gather(prompts) for p in share]
        step = self.batches + 1
        tasks = self.order.step(step)
        if [task.id for task in tasks] != all_prompts[:: self.group_size]:
            raise ConfigError(
                f"GRPOTrainer sent other tasks at step {step} than this run has there: set "
                "ignore_data_skip=False, and call train once"
            )
        hook = self.before_rollout
        self.batch = self.coordinator.step(
            tasks,
            self.group_size,
            lambda: self.progress(step),
            None if hook is None else lambda: hook(self, step - 1),
        )
        self.batches = step
        self.metrics = self.batch.metrics
        # Only rank 0's are logged.
        self._pending = dict(self.metrics) if self.coordinator.comm.rank == 0 else {}
        self.first_row = self.coordinator.comm.rank * len(prompts)
        trajectories = self.batch.trajectories
        self._clipped = sum(map(was_cut, trajectories)) / max(1, len(trajectories))
        rollouts = trajectories[self.first_row : self.first_row + len(prompts)]
        return {
            # P²O Eq. 4: a rollout is sampled under x̃ = T(x, z), and TRL takes its gradient on x.
            "prompt_ids": [list(t.prompt_ids) for t in rollouts],
            "completion_ids": [list(t.completion_ids) for t in rollouts],
            "logprobs": sampling_logprobs(rollouts) if trainer.use_vllm else None,
            "env_mask": [self._mask_of(t) for t in rollouts],
            "cotune_parts": [{**t.parts, "": t.reward} for t in rollouts],
            "cotune_extra": [t.extra for t in rollouts],
        }

    def rollouts_here(self, count: int) -> list[Trajectory]:
        """Select this rank's rollouts of the last training batch, in the trainer's order."""
        return self.batch.trajectories[self.first_row : self.first_row + count]

    def flat_rows(self, count: int) -> list[int]:
        """Return which of this rank's `count` rollouts are in groups whose rewards are all equal."""
        groups = self.batch.flat_groups
        return [i for i in range(count) if (self.first_row + i) // self.group_size in groups]

    def evolve_only(self) -> None:
        """Evolve for a run without training batches, under the first step."""
        if self.coordinator.comm.rank == 0:
            self.parts.record.begin_attempt(None)
        self.metrics = self.coordinator.evolve(self.progress(1))
        if (hook := self.before_rollout) is not None:
            self.coordinator.on_rank_zero(lambda: hook(self, 0))

    def _mask_of(self, trajectory: Trajectory) -> list[int]:
        """Return the rollout's `trained_mask`; 0s if it was cut off and args leave such rollouts out."""
        if self.args.mask_truncated_completions and was_cut(trajectory):
            return [0] * len(trajectory.mask)
        return list(trajectory.trained_mask)

    # ---- rewards, which the rollouts bring along

    def _reward_function(
        self, name: str, part: str, *, logs: bool
    ) -> Callable[..., list[float | None]]:
        def reward(
            cotune_parts: Sequence[Mapping[str, float]] = (),
            cotune_extra: Sequence[Mapping[str, Any]] = (),
            log_metric: Callable[[str, float], None] | None = None,
            log_extra: Callable[[str, list[Any]], None] | None = None,
            **_: object,
        ) -> list[float | None]:
            if logs:
                self._log(log_metric)
                for column in dict.fromkeys(name for extra in cotune_extra for name in extra):
                    assert log_extra is not None
                    log_extra(column, [extra.get(column) for extra in cotune_extra])
            return [parts.get(part) for parts in cotune_parts]

        reward.__name__ = name
        return reward

    def _log(self, log_metric: Callable[[str, float], None] | None) -> None:
        """Log a step's metrics, and the share of cut rollouts, which TRL computes from missing EOS tokens."""
        if log_metric is not None:
            for name, value in self._pending.items():
                log_metric(name, value)
        self._pending = {}
        # Our rollouts all end with an EOS token.
        if self._clipped and (
            ratios := self.trainer._metrics["train"].get("completions/clipped_ratio")
        ):
            ratios[-1] = max(ratios[-1], self._clipped)

    # ---- saved state

    def state_dict(self) -> State:
        return {**super().state_dict(), **spread(self.trainer)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state; raise ConfigError if another run saved it, or its optimizer cannot be read here."""
        check_spread(state, self.trainer)
        super().load_state_dict(state)


def was_cut(trajectory: Trajectory) -> bool:
    """Tell whether a token limit cut the rollout off; TRL looks for a missing EOS, which ours always have."""
    return trajectory.stop in (
        StopReason.TURN_TOKENS,
        StopReason.TOKEN_LIMIT,
        StopReason.CONTEXT_LIMIT,
    )


class CheckpointCallback(TrainerCallback):
    """Begin or resume the run, end it at its budget, complete every checkpoint, record metrics."""

    def __init__(self, joint: "TRLJoint") -> None:
        self._joint = joint
        self._micro_batches = 0

    @property
    def _writes(self) -> bool:
        return self._joint.coordinator.comm.rank == 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        joint = self._joint
        # A call of train() that was interrupted may have left half of a batch.
        trainer: Any = joint.trainer
        trainer._step = 0
        trainer._buffered_inputs = None
        trainer._current_train_step_time = 0.0
        if state.global_step == 0:
            if self._writes:
                joint.attempt = joint.parts.record.begin_attempt(None)
            return
        joint.resume(load_state(joint.state_folder / f"checkpoint-{state.global_step}"))

    def on_substep_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args)
        # A batch that has been rolled out is trained on to its end.
        if state.global_step % steps_per_batch(args) == 0:
            self._joint.ended = self._joint.budget_is_spent()
            if self._joint.ended:
                control.should_training_stop = True
                # As at the last step: a kill while the result is scored must not train it again.
                control.should_save = args.save_strategy == SaveStrategy.STEPS

    def _report(self, args: GRPOConfig) -> None:
        """Report the micro-batches of the current update; rank 0's."""
        if self._writes:
            total = steps_per_batch(args) * args.gradient_accumulation_steps
            self._micro_batches = self._micro_batches % total + 1
            report("update", self._micro_batches, total)

    def on_save(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        joint = self._joint
        joint.coordinator.comm.gather(None)  # wait until every process has written its files
        if self._writes:
            checkpoint = joint.state_folder / f"checkpoint-{state.global_step}"
            save_state(checkpoint, joint.state_dict())
            rotate_checkpoints(
                str(joint.state_folder),
                args.save_total_limit,
                state.best_model_checkpoint,
                use_mtime=True,
            )
            joint.parts.record.event("saved", joint.batches)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        if not self._writes or logs is None or "loss" not in logs:
            return  # not the log of an optimizer step
        joint = self._joint
        row = {name: float(v) for name, v in logs.items() if isinstance(v, int | float)}
        row["optimizer_step"] = float(state.global_step)
        row |= {name: float(value) for name, value in joint.metrics.items()}
        joint.parts.record.metrics(joint.batches, row)


class ResumedRate(TrainerCallback):
    """Let a resumed run follow its own learning rate and schedule, not those that its checkpoint was trained by."""

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: Any,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        if state.global_step and isinstance(lr_scheduler, LambdaLR):  # not DeepSpeed's
            follow(optimizer, lr_scheduler, args.learning_rate)


def follow(optimizer: Any, scheduler: LambdaLR, base: float) -> None:
    """Set a loaded scheduler's base rate, and the rate of the next step by its own schedule."""
    scheduler.base_lrs = [base] * len(scheduler.base_lrs)
    rates: list[Any] = [base * scale(scheduler.last_epoch) for scale in scheduler.lr_lambdas]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = base
        group["lr"] = rate
    scheduler._last_lr = list(rates)  # as `step` leaves it


def reporting(joint: "TRLJoint") -> Iterator[TrainerCallback]:
    """Yield the trainer's callbacks for trackers that take scores."""
    for callback in joint.trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback | WandbCallback | TrackioCallback):
            yield callback


def report_scores(joint: "TRLJoint", scores: Mapping[str, float]) -> None:
    """Log the scores of an evaluation that is not the trainer's own; "eval_em" is shown as eval/em; rank 0."""
    trainer = joint.trainer
    for callback in reporting(joint):
        callback.on_log(
            trainer.args, trainer.state, trainer.control, logs=dict(scores), model=trainer.model
        )


def close_reports(joint: "TRLJoint") -> None:
    """Close trackers that scores after training reopened. W&B's run ends with the process."""
    trainer = joint.trainer
    for callback in reporting(joint):
        if not isinstance(callback, WandbCallback):
            callback.on_train_end(trainer.args, trainer.state, trainer.control, model=trainer.model)


def tensorboard_into(joint: "TRLJoint", folder: Path) -> None:
    """Write TensorBoard's files to a folder, unless TENSORBOARD_LOGGING_DIR names another."""
    for callback in reporting(joint):
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder)
