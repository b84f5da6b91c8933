"""Train a run file on a Tinker server, from the probe to the summary."""

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from torch.optim import SGD
from transformers import get_scheduler

from cotune.config.run_file import TrainingConfig
from cotune.engines.evaluation import BestPolicy, RunEvaluation, conclude
from cotune.engines.joint import Joint
from cotune.engines.preflight import Preflight
from cotune.engines.run_start import begin_joint, opened_run, run_file_parts
from cotune.engines.tinker.server_policy import (
    FILE,
    Adapter,
    Pair,
    ServerPolicy,
    TinkerSampler,
    datum,
    server_path,
)
from cotune.engines.tinker.service import Service, read_arguments
from cotune.errors import ConfigError, EngineError
from cotune.methods.context_distillation import Floats, batch_weights, is_distilled, ratio_metrics
from cotune.methods.method import CISPO_CAP
from cotune.policy.codec import check_turns
from cotune.policy.policy_files import policy_path
from cotune.protocols import Codec
from cotune.rollout.metrics import group_advantages
from cotune.rollout.task_order import TaskOrder
from cotune.run.checkpoints import complete_checkpoints, save_state
from cotune.run.json_files import write_json_atomic
from cotune.run.scores import Score
from cotune.types import Distillation, Prompt, Trajectory
from cotune.utils.progress import begin

Reduction = Literal["sum", "mean"]
"""How a server adds up losses: over positions and rows; or, as SkyRL's jax server does, as the mean over a row's
positions, the prompt's included, and then over rows."""
ServerFacts = tuple[Reduction, str]
"""How a server adds up losses, and all that a probe has found, for people."""
_EXPECTED: dict[Reduction, tuple[float, float]] = {"sum": (1.0, 2.0), "mean": (0.5, 1.0)}
"""How many times as large a row's gradient is if it has as many positions again, and with its copy."""
_TOKENS = 8
_SECONDS = 300.0  # a server that compiles needs a minute for its first batch
_DRIFT = 0.1


def probe(service: Service, codec: Codec, prompt: Sequence[int], rank: int) -> ServerFacts:
    """Find out what a server does, by an adapter that it soon forgets; EngineError if a run there would go wrong."""
    service.limit = _SECONDS
    adapter = Adapter(service, rank)
    prompt = prompt[:_TOKENS]
    parameters = {"max_tokens": _TOKENS, "temperature": 1.0, "seed": 7, "stop": [codec.eos_id]}
    first, again = adapter.sample([(prompt, parameters)] * 2)
    tokens = list(first.tokens)
    logprobs = np.array(first.logprobs or [])
    _require(len(logprobs) == len(tokens) > 0, service, "gives tokens without log-probabilities")
    positions = len(prompt) + len(tokens) - 1
    rows = [(prompt, tokens), (prompt, [*tokens, *[tokens[-1]] * positions])]
    forward = adapter.forward(rows)
    drift = float(np.abs(forward[0] - logprobs).mean())
    differ = f"has log-probabilities in its sampler that are {drift:.2f} from its trainer's"
    _require(drift <= _DRIFT, service, differ)
    plain = [t for t in tokens if codec.decode([t]).isascii() and codec.decode([t]).strip()]
    for stop in [tokens[0], *(codec.decode([token]) for token in plain[:1])]:
        # Two rows again, for a server that compiles for each number.
        stopped, _ = adapter.sample([(prompt, {**parameters, "stop": [stop]})] * 2)
        sampled = list(stopped.tokens)
        read: Any = codec.decode if isinstance(stop, str) else list
        unstopped = len(sampled) == _TOKENS or sampled[-1:] == [codec.eos_id]
        ended = stop not in read(sampled[:-1]) if stop in read(sampled) else unstopped
        otherwise = f"does not end a sequence at the stop {stop!r} and keep it (it gave {sampled})"
        _require(ended, service, otherwise)
    with tempfile.TemporaryDirectory(prefix="cotune-probe-") as folder:
        path = adapter.export("probe", Path(folder) / "adapter", "base")
    service.delete(path)
    reduction = _reduction(adapter, rows, forward)  # last, since it fills Adam's moments
    service.limit = None
    repeat = "repeat" if tokens == list(again.tokens) else "do not repeat"
    differ = f"log-probabilities of sampler and trainer differ by {drift:.1e}"
    return reduction, f"losses are a {reduction}, seeds {repeat} their draws, and {differ}"


def _require(holds: bool, service: Service, otherwise: str) -> None:
    if not holds:
        raise EngineError(
            f"{service.label} {otherwise}, which would change the gradient; use another server"
        )


def _reduction(adapter: Adapter, rows: Sequence[Pair], forward: Sequence[Floats]) -> Reduction:
    """Return how losses are added up, from the gradients of a row, of a longer row, and of the first one twice."""
    reported: dict[str, float] = {}

    def norm(row: int, copies: int) -> float:
        prompt, completion = rows[row]
        inputs = np.zeros((2, len(prompt) + len(completion) - 1), dtype=np.float32)
        inputs[0, len(prompt) - 1 :] = forward[row]
        inputs[1, len(prompt) - 1 : len(prompt) + len(rows[0][1]) - 1] = 1.0
        data = [datum(prompt, completion, logprobs=inputs[0], advantages=inputs[1])] * copies
        reported.update(adapter.update(data, "importance_sampling", {}, 0.0))
        return next((float(v) for k, v in reported.items() if "grad_norm" in k), 0.0)

    short = norm(0, 1)
    long = norm(1, 1)
    double = norm(0, 2)
    if not short:
        # Without a norm, only the server's own word is left.
        silent = "reports neither a gradient's norm nor how it adds up losses"
        _require(any(name.endswith(":sum") for name in reported), adapter.service, silent)
        return "sum"
    ratios = long / short, double / short
    for reduction, expected in _EXPECTED.items():
        if np.allclose(ratios, expected, 0.05):
            return reduction
    raise EngineError(
        f"{adapter.service.label} adds up losses in an unknown way, which would change the gradient: "
        f"a row's gradient is {ratios[0]:.2f} times as large with as many positions again, and {ratios[1]:.2f} times "
        "with its copy, not 1 and 2 (a sum), nor 0.5 and 1 (a mean); use another server"
    )


Terms = Mapping[int, tuple[Floats, Floats]]  # see `token_terms`


def server_loss(loss: str, clip: float) -> tuple[str, dict[str, float]]:
    """Return the server's name of a `Method.loss`, and the bounds of its importance ratio."""
    name, low, high = ("cispo", 0.0, CISPO_CAP) if loss == "cispo" else ("ppo", 1 - clip, 1 + clip)
    return name, {"clip_low_threshold": low, "clip_high_threshold": high}


def token_terms(
    trajectories: Sequence[Trajectory],
    group_size: int,
    distillation: Distillation,
    forward: Callable[[Sequence[Pair]], list[Floats]],
    ratios: list[tuple[Floats, Floats]],
) -> Terms:
    """Return advantages and log π_old of the tokens of each rollout with an advantage, both (C,), 0 if not trained.

    log π_old is the sampler's own, so that the ratio corrects for what sampler and trainer differ by. A rollout that
    is trained on another prompt than it was sampled under has `forward`'s on that prompt. `ratios` takes context ratios
    and weights, for `ratio_metrics`.
    """
    advantages = group_advantages([t.reward for t in trajectories], group_size)
    # Without an advantage nothing is sent, nor paid for.
    sent = {i: t for i, t in enumerate(trajectories) if advantages[i] and any(t.trained_mask)}
    old = {i: np.array(t.logprobs) for i, t in sent.items()}
    distilled = {i: (t.prompt_ids, t.completion_ids) for i, t in sent.items() if is_distilled(t)}
    if distilled:
        old |= zip(distilled, forward(list(distilled.values())), strict=True)
    terms: dict[int, tuple[Floats, Floats]] = {}
    for i, t in sent.items():
        mask = np.array(t.trained_mask)
        weights = batch_weights([t], old[i][None], advantages[[i]], distillation, ratios)[0]
        terms[i] = advantages[i] * weights * mask, old[i] * mask
    return terms


def rows_of(
    trajectories: Sequence[Trajectory],
    terms: Terms,
    part: range,
    loss: str,
    reduction: Reduction,
    multiple: int = 1,
) -> list[Any]:
    """Return the rows of an update, with advantages scaled so that the server's loss is GRPO's or CISPO's.

    GRPO's is the mean over rollouts of the mean over own tokens; CISPO's is the mean over own tokens. Rollouts without
    an advantage count in the means. Rows of zeros fill up to a multiple of `multiple` rows.
    """
    rows = [(i, 1.0) for i in part if i in terms and terms[i][0].any()]
    rows += rows[-1:] and [(rows[-1][0], 0.0)] * (-len(rows) % multiple)
    own_tokens = {i: sum(trajectories[i].trained_mask) for i in part}
    data: list[Any] = []
    for i, scale in rows:
        t = trajectories[i]
        positions = len(t.prompt_ids) + len(t.completion_ids) - 1
        scale /= sum(own_tokens.values()) if loss == "cispo" else own_tokens[i] * len(part)
        if reduction == "mean":  # undo what the server divides by
            scale *= positions * len(rows)
        advantages, old = (np.zeros(positions, dtype=np.float32) for _ in terms[i])
        advantages[len(t.prompt_ids) - 1 :] = terms[i][0] * scale
        old[len(t.prompt_ids) - 1 :] = terms[i][1]
        data.append(datum(t.prompt_ids, t.completion_ids, advantages=advantages, logprobs=old))
    return data


class TinkerJoint(Joint):
    """Run a strategy on an adapter of a server, which is probed at once; nothing is written before `run`."""

    adapter: Adapter
    reduction: Reduction

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
        tasks = environment.tasks("train")
        prompt = codec.render(environment.messages(tasks[0], self.initial), environment.tools)
        begin("probing the Tinker server")
        try:
            self.service = Service(arguments, arguments.base_model or self.base)
            self.reduction, self.server_facts = probe(self.service, codec, prompt, self.rank)
        except EngineError as error:
            raise ConfigError(str(error)) from error  # nothing has begun
        order = TaskOrder(tasks, training.questions_per_step, config.seed)
        parts = run_file_parts(checked, console)
        super().__init__(parts, order, training.steps, training.group_size, training.temperature)

    def run(self, *, resume: bool) -> None:
        """Train to the end, from the newest checkpoint or from the start; evaluate and keep the best."""
        config = self.config
        settings = self.parts.settings
        codec = self.parts.codec
        with opened_run(settings, self.total_batches, resume=resume) as record:
            best = TinkerBest(record.best_path, codec.tokenizer, self.service)
            checkpoint = begin_joint(self, config, record, best, resume=resume)
            saved = server_path(checkpoint) if checkpoint else ""
            self.adapter = Adapter(self.service, self.rank, config.seed, saved)
            turn_tokens = config.limits.turn_tokens if self.row_multiple > 1 else None
            self.coordinator.sampler = TinkerSampler(self.adapter, codec, turn_tokens)
            record.event("notice", self.batches, text=f"{self.service.label}: {self.server_facts}")
            evaluation = RunEvaluation(config.evaluation, self.initial, record, best)
            self._train(evaluation, record.checkpoints_path)
            conclude(settings, record, evaluation.finish(self), self.parts.environment)

    def _train(self, evaluation: RunEvaluation, folder: Path) -> None:
        """Train from the next step to the last, or until the budget is spent."""
        training = self.config.training
        # If the budget has been raised since a resumed run ended, it is no longer spent.
        self.ended = self.ended and self.budget_is_spent()
        while self.batches < self.total_batches and not self.ended:
            step = self.batches + 1
            progress = partial(self.progress, step)
            evaluate = partial(evaluation, self, self.batches)
            batch = self.coordinator.step(
                self.order.step(step), self.group_size, progress, evaluate
            )
            metrics = {**batch.metrics, **self._update(batch.trajectories)}
            self.batches = step
            self.parts.record.metrics(step, metrics)
            self.ended = self.budget_is_spent()
            last = self.ended or step == self.total_batches
            if training.save_every and (last or step % training.save_every == 0):
                self._save(folder, training.keep_checkpoints)

    def _update(self, trajectories: list[Trajectory]) -> dict[str, float]:
        """Train on a batch in `mini_batches` optimizer steps; return the metrics."""
        training = self.config.training
        loss = self.config.method.loss
        name, bounds = server_loss(loss, training.clip)
        ratios: list[tuple[Floats, Floats]] = []
        distillation = self.coordinator.strategy.distillation
        forward = self.adapter.forward
        terms = token_terms(trajectories, self.group_size, distillation, forward, ratios)
        metrics = {"rows_sent": 0.0}
        size = len(trajectories) // training.mini_batches
        first = self.batches * training.mini_batches
        for number in range(training.mini_batches):
            part = range(number * size, (number + 1) * size)
            data = rows_of(trajectories, terms, part, loss, self.reduction, self.row_multiple)
            rate = learning_rate(training, first + number)
            metrics["learning_rate"] = rate
            if not data:
                continue
            metrics["rows_sent"] += len(data)
            for key, value in self.adapter.update(data, name, bounds, rate).items():
                key = "grad_norm" if "grad_norm" in key else f"server/{key}"
                metrics.setdefault(key, float(value))  # with the weights that were sampled
        metrics["optimizer_step"] = float(first + training.mini_batches)
        return {**metrics, **ratio_metrics(ratios)}

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

    def __init__(self, folder: Path, tokenizer: Any, service: Service) -> None:
        super().__init__(folder, tokenizer)
        self._service = service

    def offer(self, joint: Any, score: Score | None, step: int, plain: Score | None = None) -> None:
        before = server_path(self._folder)
        super().offer(joint, score, step, plain)
        # Last: a kill before the new policy is kept must leave the older one on the server.
        if before not in ("", server_path(self._folder)):
            self._service.delete(before)

    def forget(self) -> None:
        before = server_path(self._folder)
        super().forget()
        if before:
            self._service.delete(before)

    def write_weights(self, joint: Any, folder: Path, step: int) -> None:
        path = joint.adapter.export(f"best-{step}", folder, joint.base)
        write_json_atomic(folder / FILE, {"path": path})

    def load_weights(self, joint: Any, step: int) -> None:
        # SkyRL's jax server puts these weights into the adapter, whose training has ended.
        policy = ServerPolicy(joint.service, model_path=server_path(self._folder))
        joint.coordinator.sampler = replace(joint.coordinator.sampler, policy=policy)


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of an optimizer step, counted from 0."""
    steps = training.steps * training.mini_batches
    warmup = math.ceil(training.warmup * steps)
    scheduler: Any = get_scheduler(training.schedule, SGD([torch.zeros(1)]), warmup, steps)
    return training.learning_rate * float(scheduler.lr_lambdas[0](step))
