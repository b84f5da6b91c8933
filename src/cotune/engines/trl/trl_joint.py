"""One joint run on TRL's GRPOTrainer: the four trainer arguments, built around one coordinator.

    joint = TRLJoint(...)
    trainer = GRPOTrainer(
        model,
        args=args,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
    )

Each call of `rollout_func` produces one rollout batch; strategy steps count these calls.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from datasets import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerState,
)
from transformers.trainer_utils import SaveStrategy
from trl import GRPOConfig, GRPOTrainer

from cotune.engines.comm import TorchComm, world
from cotune.engines.joint import Joint, Parts
from cotune.engines.trl.checkpoints import drop_orphans, load_state
from cotune.engines.trl.checks import (
    check_args,
    check_sleep,
    check_strategy,
    check_teacher,
    check_trainer,
    check_trl,
    check_weighing,
    steps_per_batch,
)
from cotune.engines.trl.joint_trainer import JointTrainer
from cotune.engines.trl.sharding import check_spread, spread, whole_weights
from cotune.engines.trl.trackers import TrackerCallback
from cotune.engines.trl.trl_run import CheckpointCallback, TRLRun
from cotune.engines.trl.vllm_sampler import VLLMSampler, engine_context, sampling_logprobs
from cotune.engines.trl.vllm_start import seed_vllm
from cotune.engines.undamaged import chosen_by_trainer
from cotune.errors import ConfigError
from cotune.methods.context_distillation import reweighs
from cotune.policy.attention import avoid_cudnn_attention
from cotune.policy.codec import HFCodec
from cotune.policy.sampling import policy_sampler
from cotune.protocols import Sampler, State
from cotune.rewards.functions import RewardFunctions
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.rollout.metrics import without_variance
from cotune.rollout.task_order import TaskOrder
from cotune.run.scores import measure_of, score_trajectories
from cotune.types import StopReason, Task, Trajectory
from cotune.utils.progress import report

Hook = Callable[["TRLJoint", int], None]
"""Called on rank 0 before a step's rollouts, with the number of steps trained so far."""


class TRLJoint(Joint, TRLRun[GRPOTrainer]):
    """Run a strategy on one GRPOTrainer.

    Args:
        parts: strategy, environment, LLM and outputs.
        tokenizer: the policy's tokenizer; also the trainer's `processing_class`.
        args: the trainer's configuration; every field is checked here.
        before_rollout: a hook before each step's rollouts, such as an evaluation.

    Attributes:
        dataset: one row per question of every step, in training order.
        rollout_func, reward_funcs, callbacks: arguments for GRPOTrainer.
        last_rollouts: this rank's rollouts of the last training batch, in the trainer's order.
        flat_rows: their indices in groups whose rewards are all equal.
        reweighs: whether distillation changes the loss of that batch on any rank.
        evaluated: by task id, the trainer's evaluation rollouts since its last report.
        splits: by task id, the split whose `eval_dataset` contains the task.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: PreTrainedTokenizerBase,
        args: GRPOConfig,
        before_rollout: Hook | None = None,
    ) -> None:
        check_trl()
        check_args(args)
        check_strategy(args, parts.strategy)
        avoid_cudnn_attention()  # also if vLLM samples
        self.args = args
        self.before_rollout = before_rollout
        self.codec = HFCodec(tokenizer, cast("dict[str, Any] | None", args.chat_template_kwargs))
        rows = args.generation_batch_size
        if rows is None or args.num_generations is None or rows % args.num_generations:
            raise ConfigError(
                f"GRPOConfig.generation_batch_size is {rows}; expected a multiple of "
                f"num_generations={args.num_generations}"
            )
        self.questions = rows // args.num_generations
        order = TaskOrder(parts.environment.tasks("train"), self.questions, parts.seed)
        total_batches = -(-args.max_steps // steps_per_batch(args))
        coordinator = Coordinator(
            strategy=parts.strategy,
            environment=parts.environment,
            codec=self.codec,
            sampler=LateSampler(self, tokenizer),
            llm=parts.llm,
            record=parts.record,
            settings=RolloutSettings(
                limits=parts.limits,
                temperature=args.temperature,
                seed=parts.seed,
                rows_per_call=parts.rows_per_call,
            ),
            rewards=parts.rewards,
            comm=world(),
        )
        coordinator.gather = lambda: whole_weights(self.unwrapped)
        super().__init__(parts, order, total_batches, coordinator)
        ids = [order.at(i) for i in range(total_batches * self.questions)]
        self.dataset = Dataset.from_dict({"prompt": ids})
        self.reward_funcs: list[Any] = [self.reward]
        self.callbacks: list[TrainerCallback] = [JointCallback(self), TrackerCallback(self)]
        self.metrics: dict[str, float] = {}
        self.last_rollouts: list[Trajectory] = []
        self.flat_rows: list[int] = []
        self.reweighs = False
        self._pending: dict[str, float] = {}
        self._clipped = 0.0
        self.evaluated: dict[str, Trajectory] = {}
        self.splits: dict[str, str] = {}
        self._loaded: State | None = None

    def bind(self, trainer: GRPOTrainer) -> None:
        """Bind the trainer whose policy is sampled.

        A `JointTrainer` with `callbacks` does this on construction; otherwise the first rollout
        does.

        Raises:
            ConfigError: the trainer would not train on the rollouts.
        """
        check_trainer(trainer)
        if trainer.reward_funcs != self.reward_funcs:
            raise ConfigError(
                f"GRPOTrainer was given reward_funcs={trainer.reward_func_names}, which would train the "
                "policy on a different score from the one that the strategy learns from: give it "
                "reward_funcs=joint.reward_funcs as it is, and your functions to the method as rewards=[…]"
            )
        check_teacher(trainer, self.parts.strategy)
        check_sleep(trainer)
        if self._loaded is not None:
            check_spread(self._loaded, trainer)
        if not isinstance(trainer, JointTrainer):
            check_weighing(self.parts.strategy)
        if not any(isinstance(one, JointCallback) for one in trainer.callback_handler.callbacks):
            raise ConfigError(
                "GRPOTrainer was given no joint.callbacks, which start, save and resume the run: give it "
                "callbacks=joint.callbacks"
            )
        # With one training process, a colocated vLLM initializes its own process group.
        several = dist.is_initialized() and dist.get_world_size() > 1
        if several and self.coordinator.comm.size == 1:
            self.coordinator.comm = TorchComm()
        self._trainer = trainer
        # Later, the trainer has restored a checkpoint's random state.
        if trainer.state.global_step == 0:
            seed_vllm(trainer, self.parts.seed)
        if isinstance(trainer, JointTrainer):
            trainer.follow(self)
        self.coordinator.settings = replace(
            self.coordinator.settings, context_tokens=self._context_tokens()
        )

    def _context_tokens(self) -> int | None:
        """Return the context length in tokens: the policy's limit, or vLLM's if it is lower."""
        config = self.unwrapped.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        if not self.trainer.use_vllm:
            return context
        distillation = self.coordinator.strategy.distillation
        engine = engine_context(self.trainer, distillation, self.coordinator.comm)
        return engine if context is None else min(context, engine)

    def weights_replaced(self) -> None:
        """Call after loading weights into the policy without the trainer; vLLM reloads them."""
        if self.trainer.use_vllm:
            self.trainer._last_loaded_step = -1  # the value before any weights were sent

    def rollout_func(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """Roll out a batch for TRL: `prompts` are this rank's task ids, repeated per group."""
        if self._trainer is not trainer:
            self.bind(trainer)
        if isinstance(self.parts.rewards, RewardFunctions):
            self.parts.rewards.trainer_state = trainer.state
        training = bool(cast(PreTrainedModel, trainer.model).training)
        group = int((trainer.num_generations if training else trainer.num_generations_eval) or 1)
        everyone = [p for share in self.coordinator.comm.gather(prompts) for p in share]
        tasks = [self._task(p) for p in everyone]
        if training:
            trajectories = self._train_batch(tasks[::group], group)
        else:
            trajectories = self._evaluate(tasks)
        self._clipped = sum(map(was_cut, trajectories)) / max(1, len(trajectories))
        first = self.coordinator.comm.rank * len(prompts)
        mine = trajectories[first : first + len(prompts)]
        if training:
            self.last_rollouts = mine
            flat = set(without_variance([t.reward for t in trajectories], group))
            self.flat_rows = [i for i in range(len(mine)) if (first + i) // group in flat]
        return {
            "prompt_ids": [list(t.prompt_ids) for t in mine],
            "completion_ids": [list(t.completion_ids) for t in mine],
            "logprobs": sampling_logprobs(mine, training) if trainer.use_vllm else None,
            "env_mask": [self._trained_mask(t) for t in mine],
            "cotune_reward": [t.reward for t in mine],
        }

    def _trained_mask(self, trajectory: Trajectory) -> list[int]:
        """Return the rollout's `trained_mask`; 0s if it was cut off and args leave such rollouts out."""
        if self.args.mask_truncated_completions and was_cut(trajectory):
            return [0] * len(trajectory.mask)
        return list(trajectory.trained_mask)

    def _evaluate(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """Roll out each question once, greedily; the rollout represents its whole group."""
        once = {task.id: task for task in tasks}
        done = {t.task.id: t for t in self.coordinator.evaluate(list(once.values()))}
        self.evaluated.update(done)
        return [done[task.id] for task in tasks]

    def reward(
        self,
        cotune_reward: Sequence[float] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_: object,
    ) -> list[float]:
        """Return the environment's scores and log metrics (TRL's reward function)."""
        if cotune_reward is None:
            raise ConfigError(
                "GRPOTrainer generated rollouts itself: give it rollout_func=joint.rollout_func"
            )
        if log_metric is not None:
            for name, value in self._pending.items():
                log_metric(name, value)
        self._pending = {}
        if self._clipped:
            self._correct_clipped_ratio()
        return list(cotune_reward)

    def _correct_clipped_ratio(self) -> None:
        """Replace the ratio that TRL computed from missing EOS tokens; our rollouts all have one."""
        mode = "train" if cast(PreTrainedModel, self.trainer.model).training else "eval"
        if ratios := self.trainer._metrics[mode].get("completions/clipped_ratio"):
            ratios[-1] = max(ratios[-1], self._clipped)

    def state_dict(self) -> State:
        return {**super().state_dict(), **(spread(self.trainer) if self.bound else {})}

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state is from another run or another set of processes."""
        self._loaded = state
        if self.bound:
            check_spread(state, self.trainer)
        super().load_state_dict(state)

    def evolve_only(self) -> None:
        """Evolve for a run without training batches, under the first step."""
        if self.coordinator.comm.rank == 0:
            self.parts.record.begin_attempt(None)
        self.metrics = self._evolve(1)

    def _evolve(self, step: int) -> dict[str, float]:
        """Evolve and then evaluate, if either is due before a step's rollouts."""
        metrics, hook = self.coordinator.evolve(self.progress(step)), self.before_rollout
        if hook is not None:
            self.coordinator.on_rank_zero(lambda: hook(self, step - 1))
        return metrics

    def _train_batch(self, tasks: list[Any], group: int) -> list[Trajectory]:
        step = self.batches + 1
        if tasks != self.order.step(step):
            raise ConfigError(
                f"GRPOTrainer sent other tasks at step {step} than this run has there: give it "
                "train_dataset=joint.dataset as it is, ignore_data_skip=False, and call train once"
            )
        coordinator, metrics = self.coordinator, self._evolve(step)
        progress = self.progress(step)  # after what evolution has spent
        assignments = coordinator.assign(tasks, group, progress)
        trajectories = coordinator.rollout(assignments)
        metrics |= coordinator.observe(trajectories, group, progress)
        trajectories = coordinator.taught(trajectories)
        self.reweighs = reweighs(trajectories, coordinator.strategy.distillation)
        self.batches = step
        self.metrics = metrics
        self._pending = dict(metrics) if self.coordinator.comm.rank == 0 else {}
        return trajectories

    def _task(self, prompt: object) -> Any:
        task = self.order.by_id.get(prompt) if isinstance(prompt, str) else None
        if task is None:
            raise ConfigError(
                f"GRPOTrainer sent the prompt {prompt!r}, which is not a task of the environment: "
                "give it train_dataset=joint.dataset (and eval_dataset=joint.eval_dataset(…))"
            )
        return task

    def eval_dataset(self, split: str = "validation") -> Dataset:
        """Return a dataset for GRPOTrainer's own evaluation.

        With "validation", the end of training also chooses the best instruction there.

        Raises:
            ConfigError: the split has no task, or one with the id of a training task; the trainer
                identifies tasks only by id.
        """
        tasks = self.parts.environment.tasks(split)
        if not tasks:
            raise ConfigError(
                f"environment: the {split} split has no questions; hold some out, as in "
                f"cotune.tasks_from(dataset, {split}=100)"
            )
        known = self.order.by_id
        for task in tasks:
            if known.get(task.id, task).question != task.question:
                raise ConfigError(
                    f"environment: the {split} split has a task with the id {task.id!r} of a task "
                    "that is trained on; give each its own id"
                )
        self.order.by_id.update({task.id: task for task in tasks})
        self.splits.update(dict.fromkeys((task.id for task in tasks), split))
        return Dataset.from_dict({"prompt": [task.id for task in tasks]})


_log = logging.getLogger("cotune")


class JointCallback(CheckpointCallback[TRLJoint]):
    """Bind the trainer, start or resume the run, and record the trainer's own evaluations."""

    _training = False
    _micro_batches = 0

    def on_init_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Bind the trainer once it is constructed, the earliest moment it is known."""
        if args is not self._joint.args:
            raise ConfigError(
                "the trainer was given other args than cotune checked: give the same GRPOConfig to "
                "for_trl(tokenizer, args) and to the trainer"
            )
        trainer = JointTrainer.in_the_making()
        if trainer is None:
            check_weighing(self._joint.parts.strategy)
        else:
            trainer.joint = self._joint

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        super().on_train_begin(args, state, control)
        joint, self._training = self._joint, True
        if joint.bound:  # a call of train() that was interrupted may have left half of a batch
            joint.trainer._step, joint.trainer._buffered_inputs = 0, None
            joint.trainer._current_train_step_time = 0.0
        if state.global_step == 0:
            if self._writes:
                joint.attempt = joint.parts.record.begin_attempt(None)
            return
        saved = load_state(joint.state_folder, state.global_step)
        if saved is None:
            raise ConfigError(
                f"{joint.state_folder}: checkpoint-{state.global_step} has no readable "
                f"cotune-state-{state.global_step}.json beside it; resume from one that has"
            )
        if joint.chosen is None and self._writes:  # the trainer has chosen it
            checkpoint = joint.state_folder / f"checkpoint-{state.global_step}"
            joint.chosen = chosen_by_trainer(checkpoint)
        joint.resume(saved)

    def on_substep_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args, state)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._report(args, state)
        super().on_step_end(args, state, control)

    def _report(self, args: GRPOConfig, state: TrainerState) -> None:
        """Report the micro-batches of the current update; rank 0's."""
        if self._writes:
            total = steps_per_batch(args) * args.gradient_accumulation_steps
            self._micro_batches = self._micro_batches % total + 1
            report("update", self._micro_batches, total)

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._write_evaluation(state)
        # The trainer decides whether to save only after this, so our half is written first.
        if self._training and args.save_strategy == SaveStrategy.BEST:
            self._save_state(state)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        self._training = False
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._load_best(Path(state.best_model_checkpoint))
        if self._writes:
            drop_orphans(self._joint.state_folder, keep_from=state.global_step + 1)

    def _own_metrics(self, state: TrainerState) -> dict[str, float]:
        return {name: float(value) for name, value in self._joint.metrics.items()}

    def _load_best(self, checkpoint: Path) -> None:
        """Load the strategy's state from the checkpoint that the trainer has just loaded."""
        joint, step = self._joint, int(checkpoint.name.rpartition("-")[2])
        saved = load_state(joint.state_folder, step) if checkpoint.is_dir() else None
        if saved is None:
            if self._writes:
                _log.warning("%s is not whole: the instruction is the last step's", checkpoint)
            return
        joint.coordinator.strategy.load_state_dict(saved["coordinator"]["strategy"])
        joint.weights_replaced()

    def _write_evaluation(self, state: TrainerState) -> None:
        """Record the trainer's own evaluation in the same form as a run file's."""
        joint = self._joint
        trajectories, joint.evaluated = list(joint.evaluated.values()), {}
        if not (trajectories and self._writes):
            return
        measure = measure_of(joint.parts.environment, joint.parts.rewards)
        score, step = score_trajectories(trajectories, measure), joint.batches
        when = "during" if self._training and step else "after" if step else "before"
        split = joint.splits.get(trajectories[0].task.id, "train")
        joint.parts.record.score(step, trajectories, score, split=split, when=when, trained=step)


class LateSampler:
    """Sample from the bound trainer's policy or its vLLM, chosen once the trainer is known."""

    def __init__(self, joint: "TRLJoint", tokenizer: PreTrainedTokenizerBase) -> None:
        self._joint, self._tokenizer = joint, tokenizer
        self._sampler: Sampler | None = None
        self._trainer: GRPOTrainer | None = None

    def open(self, sampling: Any) -> Any:
        trainer = self._joint.trainer
        if self._sampler is None or self._trainer is not trainer:
            self._sampler, self._trainer = self._pick(self._joint), trainer
        return self._sampler.open(sampling)

    def _pick(self, joint: "TRLJoint") -> Sampler:
        if joint.trainer.use_vllm:
            coordinator = joint.coordinator
            context = coordinator.settings.context_tokens
            return VLLMSampler(joint.trainer, joint.codec, coordinator.comm, context)
        casts: Any = joint.trainer.accelerator.autocast
        return policy_sampler(joint.policy, joint.codec, cast(Any, self._tokenizer), casts)


def was_cut(trajectory: Trajectory) -> bool:
    """Return whether a token limit cut the rollout off.

    TRL looks for a missing EOS, but our rollouts always end with one.
    """
    return trajectory.stop in (
        StopReason.TURN_TOKENS,
        StopReason.TOKEN_LIMIT,
        StopReason.CONTEXT_LIMIT,
    )
