"""Train a run file on a Tinker server, from the probe to the summary."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import get_scheduler

from cotune.config.run_file import TrainingConfig
from cotune.engines.best_policy import BestPolicy
from cotune.engines.conclude import conclude
from cotune.engines.evaluation import RunEvaluation
from cotune.engines.joint import Joint
from cotune.engines.preflight import Preflight
from cotune.engines.run_start import begin_joint, opened_run, run_file_parts
from cotune.engines.tinker.adapter import Adapter
from cotune.engines.tinker.losses import rows_of, server_loss, token_terms
from cotune.engines.tinker.probe import probe
from cotune.engines.tinker.sampler import FILE, ServerPolicy, TinkerSampler, server_path
from cotune.engines.tinker.service import Service
from cotune.engines.tinker.settings import read_arguments
from cotune.errors import ConfigError, EngineError
from cotune.methods.context_distillation import Floats, ratio_metrics
from cotune.policy.policy_files import policy_path
from cotune.policy.template_checks import check_turns
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import complete_checkpoints, save_state
from cotune.run.json_files import write_json_atomic
from cotune.run.scores import Score
from cotune.types import Prompt, Trajectory
from cotune.utils.progress import begin


class TinkerJoint(Joint):
    """Run a strategy on an adapter of a Tinker server. It writes nothing before `run`, which makes the adapter.

    Raises:
        ConfigError: a field is invalid; or the server does not answer, refuses the key, has not the model, or would
            not train as the run file says.
    """

    adapter: Adapter

    def __init__(self, checked: Preflight, console: Console) -> None:
        config = checked.config
        training = config.training
        environment = checked.environment
        codec = checked.codec
        arguments = read_arguments(config)
        check_turns(environment, codec)  # may set the tokenizer's template
        self.config = config
        self.base = policy_path(config.policy.path)
        self.rank = config.policy.lora.rank if config.policy.lora else 0
        self.row_multiple = arguments.row_multiple
        self.initial = Prompt(checked.instruction)
        first = environment.messages(environment.tasks("train")[0], self.initial)
        begin("probing the Tinker server")
        try:
            self.service = Service(arguments, arguments.base_model or self.base)
            prompt = codec.render(first, environment.tools)
            self.facts = probe(self.service, codec, prompt, self.rank)
        except EngineError as error:
            raise ConfigError(str(error)) from error  # nothing has begun
        order = TaskOrder(environment.tasks("train"), training.questions_per_step, config.seed)
        super().__init__(
            run_file_parts(checked, console),
            order,
            training.steps,
            training.group_size,
            training.temperature,
        )

    def run(self, *, resume: bool) -> None:
        """Train to the end, from the newest checkpoint or from the start; evaluate and keep the best."""
        config = self.config
        environment = self.parts.environment
        codec = self.parts.codec
        settings = self.parts.settings
        with opened_run(settings, self.total_batches, resume=resume) as record:
            best = TinkerBest(record.best_path, codec.tokenizer)
            checkpoint = begin_joint(self, config, record, best, resume=resume)
            saved = server_path(checkpoint) if checkpoint else ""
            self.adapter = Adapter(self.service, self.rank, config.seed, saved)
            turn_tokens = config.limits.turn_tokens if self.row_multiple > 1 else None
            self.coordinator.sampler = TinkerSampler(self.adapter, codec, turn_tokens)
            text = f"the Tinker server at {self.service.label}: {self.facts}"
            record.event("notice", self.batches, text=text)
            evaluation = RunEvaluation(
                config.evaluation, self.initial, record, best, lambda *_: None
            )
            self._train(evaluation, config.training, record.checkpoints_path)
            conclude(settings, record, evaluation.finish(self), environment)

    def _train(self, evaluation: RunEvaluation, training: TrainingConfig, folder: Path) -> None:
        """Train from the next step to the last, or until the budget is spent."""
        # If the budget has been raised since a resumed run ended, it is no longer spent.
        self.ended = self.ended and self.budget_is_spent()
        while self.batches < self.total_batches and not self.ended:
            step = self.batches + 1
            batch = self.coordinator.step(
                self.order.step(step),
                self.group_size,
                lambda now=step: self.progress(now),
                lambda: evaluation(self, self.batches),
            )
            metrics = {**batch.metrics, **self._update(batch.trajectories, training)}
            self.batches = step
            self.parts.record.metrics(step, metrics)
            self.ended = self.budget_is_spent()
            last = self.ended or step == self.total_batches
            if training.save_every and (last or step % training.save_every == 0):
                self._save(folder, training.keep_checkpoints)

    def _update(self, trajectories: list[Trajectory], training: TrainingConfig) -> dict[str, float]:
        """Train on a batch in `mini_batches` optimizer steps; return the metrics."""
        loss = self.config.method.loss
        name, bounds = server_loss(loss, training.clip)
        ratios: list[tuple[Floats, Floats]] = []
        distillation = self.coordinator.strategy.distillation
        forward = self.adapter.forward
        terms = token_terms(trajectories, self.group_size, distillation, forward, ratios)
        metrics = {"rows_sent": 0.0}
        size = len(trajectories) // training.mini_batches
        for number in range(training.mini_batches):
            part = range(number * size, (number + 1) * size)
            reduction = self.facts.reduction
            data = rows_of(trajectories, terms, part, loss, reduction, self.row_multiple)
            rate = learning_rate(training, self.batches * training.mini_batches + number)
            metrics["learning_rate"] = rate
            if not data:
                continue
            metrics["rows_sent"] += len(data)
            for key, value in self.adapter.update(data, name, bounds, rate).items():
                key = "grad_norm" if "grad_norm" in key else f"server/{key}"
                metrics.setdefault(key, float(value))  # with the weights that were sampled
        steps = (self.batches + 1) * training.mini_batches
        return {**metrics, **ratio_metrics(ratios), "optimizer_step": float(steps)}

    def _save(self, folder: Path, keep: int) -> None:
        """Save a checkpoint, first on the server, then here; delete those that are too many."""
        checkpoint = folder / f"checkpoint-{self.batches}"
        checkpoint.mkdir(parents=True, exist_ok=True)
        path = self.adapter.save(f"step-{self.batches}")
        write_json_atomic(checkpoint / FILE, {"path": path})
        save_state(checkpoint, self.state_dict())
        for old in complete_checkpoints(folder)[keep:]:
            path = server_path(old)
            # First here: a folder whose weights are gone would be chosen by a resume.
            shutil.rmtree(old, ignore_errors=True)
            self.service.delete(path)
        self.parts.record.event("saved", self.batches)


class TinkerBest(BestPolicy):
    """Keep the best policy: here as a PEFT adapter, and on the server to sample from."""

    _left_on_server = ""

    def forget(self) -> None:
        self._left_on_server = server_path(self._folder) or self._left_on_server
        super().forget()

    def offer(self, joint: Any, score: Score | None, step: int, plain: Score | None = None) -> None:
        before = server_path(self._folder) or self._left_on_server
        super().offer(joint, score, step, plain)
        if before and before != server_path(self._folder):
            joint.service.delete(before)

    def write_weights(self, joint: Any, folder: Path, step: int) -> None:
        path = joint.adapter.export(f"best-{step}", folder, joint.base)
        write_json_atomic(folder / FILE, {"path": path})

    def load_weights(self, joint: Any, step: int) -> None:
        # SkyRL's jax server puts these weights into the adapter, whose training has ended.
        kept = ServerPolicy(joint.service, model_path=server_path(self._folder))
        joint.coordinator.sampler = replace(joint.coordinator.sampler, policy=kept)


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of an optimizer step, counted from 0."""
    steps = training.steps * training.mini_batches
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    warmup = -int(-training.warmup * steps // 1)
    scheduler: Any = get_scheduler(training.schedule, optimizer, warmup, steps)
    return training.learning_rate * float(scheduler.lr_lambdas[0](step))
