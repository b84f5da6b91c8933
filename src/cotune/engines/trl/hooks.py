"""Rides TRL's GRPOTrainer: what its four arguments need, around one coordinator.

    joint = TRLJoint(...)
    trainer = GRPOTrainer(
        model,
        args=args,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
    )

A rollout batch is one call of `rollout_func`; strategy time counts those calls.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from cotune.engines.comm import TorchComm
from cotune.engines.joint_run import Joint
from cotune.engines.parts import Parts
from cotune.engines.trl.bound import Bound
from cotune.engines.trl.checks import (
    check_args,
    check_strategy,
    check_trainer,
    check_trl,
    check_weighing,
    steps_per_batch,
)
from cotune.engines.trl.late_sampler import LateSampler
from cotune.engines.trl.sharding import check_spread, gathered, spread, whole_weights
from cotune.engines.trl.trainer import JointTrainer
from cotune.engines.trl.truncation import was_cut
from cotune.engines.trl.vllm_sampler import engine_context, sampling_logprobs
from cotune.errors import ConfigError
from cotune.methods.p2o.distillation import reweighs
from cotune.policy.codec import HFCodec
from cotune.protocols import State
from cotune.rewards.functions import RewardFunctions
from cotune.rollout.comm import SingleProcess
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.rollout.task_order import TaskOrder
from cotune.types import Task, Trajectory

Hook = Callable[["TRLJoint", int], None]
"""Called on rank 0 before a step's rollouts, with the steps trained so far."""


class TRLJoint(Joint, Bound[GRPOTrainer]):
    """One joint run on GRPOTrainer.

    Args:
        parts: strategy, environment, LLM and where things are written.
        tokenizer: the policy's; the trainer's `processing_class`.
        args: the trainer's configuration; checked here, line by line.
        before_rollout: an evaluation, say.

    Attributes:
        dataset: one row a question of every step, in the order the run visits them.
        rollout_func, reward_funcs, callbacks: for GRPOTrainer.
        last_rollouts: this rank's rollouts of the last training batch, in the trainer's order.
        reweighs: whether distillation changes the loss of that batch, on whatever rank.
        evaluated: by task id, what the trainer has evaluated since its last report.
        splits: by task id, the split whose `eval_dataset` has it.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: PreTrainedTokenizerBase,
        args: GRPOConfig,
        before_rollout: Hook | None = None,
    ) -> None:
        from cotune.engines.trl.callback import JointCallback
        from cotune.engines.trl.trackers import TrackerCallback

        check_trl()
        check_args(args)
        check_strategy(args, parts.strategy)
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
            journal=parts.journal,
            meter=parts.meter,
            settings=RolloutSettings(
                limits=parts.limits,
                temperature=args.temperature,
                seed=parts.seed,
                rows_per_call=parts.rows_per_call,
                resample_rounds=parts.resample_rounds,
            ),
            rewards=parts.rewards,
            comm=TorchComm() if dist.is_initialized() else SingleProcess(),
        )
        coordinator.gather = lambda: whole_weights(self.unwrapped)
        super().__init__(parts, order, total_batches, coordinator)
        ids = [order.at(i) for i in range(total_batches * self.questions)]
        self.dataset = Dataset.from_dict({"prompt": ids})
        self.reward_funcs: list[Any] = [self.reward]
        self.callbacks: list[TrainerCallback] = [JointCallback(self), TrackerCallback(self)]
        self.metrics: dict[str, float] = {}
        self.last_rollouts: list[Trajectory] = []
        self.reweighs = False
        self._pending: dict[str, float] = {}
        self.evaluated: dict[str, Trajectory] = {}
        self.splits: dict[str, str] = {}
        self._loaded: State | None = None

    @property
    def state_folder(self) -> Path:
        return Path(cast(str, self.args.output_dir))

    def bind(self, trainer: GRPOTrainer) -> None:
        """Names the trainer whose policy is sampled.

        Done where a `JointTrainer` is made with `callbacks`; otherwise by the first rollout.

        Raises:
            ConfigError: a trainer that would not train on what was rolled out.
        """
        check_trainer(trainer)
        if self._loaded is not None:
            check_spread(self._loaded, trainer)
        if not isinstance(trainer, JointTrainer):
            check_weighing(self.parts.strategy)
        # A colocated vLLM begins a group of its own where one process trains.
        several = dist.is_initialized() and dist.get_world_size() > 1
        if several and self.coordinator.comm.size == 1:
            self.coordinator.comm = TorchComm()
        self._trainer = trainer
        if isinstance(trainer, JointTrainer):
            trainer.joint = self
        self.coordinator.settings = replace(
            self.coordinator.settings, context_tokens=self._context_tokens()
        )

    def _context_tokens(self) -> int | None:
        """Return what can be attended to: the policy's own limit, or that of vLLM if it is lower."""
        config = self.unwrapped.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        if not self.trainer.use_vllm:
            return context
        distillation = self.coordinator.strategy.distillation
        engine = engine_context(self.trainer, distillation, self.coordinator.comm)
        return engine if context is None else min(context, engine)

    def weights_replaced(self) -> None:
        """To be called where weights came into the policy beside the trainer: vLLM is sent them, too."""
        if self.trainer.use_vllm:
            self.trainer._last_loaded_step = -1  # as in a trainer that has sent none yet

    @property
    def unwrapped(self) -> PreTrainedModel:
        """The current policy as it lies in this process: under FSDP2 its weights are shards."""
        wrapped = self.trainer.model_wrapped
        return cast(PreTrainedModel, self.trainer.accelerator.unwrap_model(wrapped))

    @contextmanager
    def policy(self) -> Iterator[PreTrainedModel]:
        """The current policy, unwrapped, whole and in evaluation mode; all ranks open it together."""
        # TRL's context for generation would set gradient checkpointing anew, by other arguments.
        model = self.unwrapped
        training = model.training
        model.eval()
        try:
            with gathered(model):
                yield model
        finally:
            model.train(training)

    def rollout_func(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """TRL's hook: `prompts` are this rank's task ids, each repeated for its group."""
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
        first = self.coordinator.comm.rank * len(prompts)
        mine = trajectories[first : first + len(prompts)]
        if training:
            self.last_rollouts = mine
        return {
            "prompt_ids": [list(t.prompt_ids) for t in mine],
            "completion_ids": [list(t.completion_ids) for t in mine],
            "logprobs": sampling_logprobs(mine, training) if trainer.use_vllm else None,
            "env_mask": [self._trained_mask(t) for t in mine],
            "cotune_reward": [t.reward for t in mine],
        }

    def _trained_mask(self, trajectory: Trajectory) -> list[int]:
        """Return which tokens are trained on; none of a rollout that was cut off, if args say so."""
        stop = self.parts.environment.stop
        if self.args.mask_truncated_completions and was_cut(trajectory, stop):
            return [0] * len(trajectory.mask)
        return list(trajectory.mask)

    def _evaluate(self, tasks: Sequence[Task]) -> list[Trajectory]:
        """One greedy rollout a question, which stands for its whole group."""
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
        """TRL's reward function: passes the environment's score on, and the strategy's metrics."""
        if cotune_reward is None:
            raise ConfigError(
                "GRPOTrainer generated by itself: give it rollout_func=joint.rollout_func"
            )
        if log_metric is not None:
            for name, value in self._pending.items():
                log_metric(name, value)
        self._pending = {}
        return list(cotune_reward)

    def state_dict(self) -> State:
        return {**super().state_dict(), **(spread(self.trainer) if self.bound else {})}

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if another run was saved than this one, or by other processes."""
        self._loaded = state
        if self.bound:
            check_spread(state, self.trainer)
        super().load_state_dict(state)

    def evolve_only(self) -> None:
        """A run without training batches: what comes before the first one, under its step."""
        if self.coordinator.comm.rank == 0:
            self.parts.meter.begin_attempt(None)
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
        coordinator, progress = self.coordinator, self.progress(step)
        metrics = self._evolve(step)
        assignments = coordinator.assign(tasks, group, progress)
        trajectories = coordinator.rollout(assignments)
        trajectories, resampled = coordinator.resample(trajectories, group, progress)
        metrics |= resampled | coordinator.observe(trajectories, group, progress)
        self.reweighs = reweighs(trajectories, coordinator.strategy.distillation)
        if self.reweighs and not isinstance(self.trainer, JointTrainer):
            raise ConfigError(
                "rollouts of this step were sampled under a hint, and GRPOTrainer alone does not "
                f"weigh their tokens as {self.coordinator.strategy.distillation} asks: use "
                "cotune.JointTrainer in its place, or ratio: original without drop_failed"
            )
        self.batches = step
        self.metrics = metrics
        self._pending = dict(metrics) if self.coordinator.comm.rank == 0 else {}
        return trajectories

    def _task(self, prompt: object) -> Any:
        task = self.order.by_id.get(prompt) if isinstance(prompt, str) else None
        if task is None:
            raise ConfigError(
                f"GRPOTrainer sent the prompt {prompt!r}, which is no task of the environment: "
                "give it train_dataset=joint.dataset (and eval_dataset=joint.eval_dataset(…))"
            )
        return task

    def eval_dataset(self, split: str = "validation") -> Dataset:
        """A dataset for GRPOTrainer's own evaluation.

        Raises:
            ConfigError: a task of the split has the id of another one: the trainer knows ids alone.
        """
        tasks = self.parts.environment.tasks(split)
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
