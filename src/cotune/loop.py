"""The reference loop: one process, one update per step, readable from top to bottom.

The engines are tested against it, and it is the shortest complete statement of the method. Real
runs use an engine, which adds accumulation, a KL term, several processes, checkpoints and more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from cotune.methods.p2o.context_distillation import batch_weights, old_logprobs
from cotune.rollout.coordinator import Coordinator
from cotune.types import Distillation, Progress, Task, Trajectory


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the reference loop.

    Attributes:
        steps: T, rollout batches and updates.
        questions: questions per step.
        group_size: G, rollouts per question.
        steps_per_epoch: steps in an epoch, after which P²O evolves hints; None is never.
        learning_rate: AdamW's learning rate.
        clip: ε, the clip range of the importance ratio.
        max_grad_norm: gradients are clipped to this norm.
    """

    steps: int
    questions: int
    group_size: int = 5
    steps_per_epoch: int | None = None
    learning_rate: float = 1e-4
    clip: float = 0.2
    max_grad_norm: float = 1.0


def train(
    model: PreTrainedModel,
    coordinator: Coordinator,
    tasks: Callable[[int], Sequence[Task]],
    settings: LoopSettings,
    log: Callable[[int, dict[str, float]], None] = lambda step, metrics: None,
) -> None:
    """Train weights and instructions together: INSPO's Algorithm 1 with any strategy.

    Args:
        model: the policy; the coordinator's sampler must sample from this very model.
        coordinator: strategy, environment and sampler.
        tasks: returns the questions of a step, counted from 1.
        settings: sizes and the optimizer's settings.
        log: called with step and metrics after each update.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    group_size, temperature = settings.group_size, coordinator.settings.temperature
    for step in range(1, settings.steps + 1):
        epoch = 0 if settings.steps_per_epoch is None else (step - 1) // settings.steps_per_epoch
        progress = Progress(step=step, epoch=epoch, total_steps=settings.steps)

        # 1. The LLM rewrites instructions or proposes hints, in steps where that is due.
        metrics = coordinator.evolve(progress)
        # 2. The strategy decides which prompt each rollout is sampled under and trained on.
        assignments = coordinator.assign(tasks(step), group_size, progress)
        # 3. The policy answers and the environment scores, once more for groups without variance.
        trajectories = coordinator.rollout(assignments)
        trajectories, resampled = coordinator.resample(trajectories, group_size, progress)
        # 4. The strategy credits its prompts with the rewards.
        metrics |= resampled | coordinator.observe(trajectories, group_size, progress)
        # 5. GRPO updates the weights.
        distillation = coordinator.strategy.distillation
        loss = policy_loss(
            model, trajectories, group_size, settings.clip, temperature, distillation
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

        log(step, {**metrics, "loss": loss.item()})


def policy_loss(
    model: PreTrainedModel,
    trajectories: Sequence[Trajectory],
    group_size: int,
    clip: float,
    temperature: float = 1.0,
    distillation: Distillation | None = None,
) -> torch.Tensor:
    """Return GRPO's loss of a batch that has not been updated on yet.

    The gradient is taken on `prompt_ids`, whatever prompt a rollout was sampled under: equal
    prompts give GRPO (INSPO Eq. 2), different ones P²O's context distillation (P²O Eq. 4).

    Args:
        model: the policy.
        trajectories: (B,), group after group.
        group_size: G.
        clip: ε.
        temperature: softmax temperature at which the rollouts were sampled.
        distillation: how to weight rollouts whose prompts differ; None uses the defaults.

    Returns:
        scalar.
    """
    distillation = distillation or Distillation()
    rewards = torch.tensor([t.reward for t in trajectories])
    advantages = group_advantages(rewards, group_size)
    logprobs, mask = completion_logprobs(model, trajectories, temperature)
    before = logprobs.detach().double().cpu().numpy()
    weights = batch_weights(trajectories, before, advantages.tolist(), distillation)
    old = torch.from_numpy(old_logprobs(trajectories, before, distillation))
    by_token = (advantages[:, None] * torch.from_numpy(weights)).to(logprobs)
    return grpo_loss(logprobs, old.to(logprobs), by_token, mask, clip)


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Normalise rewards within each group, INSPO Eq. 3: (r − mean) / (std + 1e-4).

    The standard deviation is the sample's (G − 1), as TRL computes it.

    Args:
        rewards: (B,), group after group.

    Returns:
        (B,); exactly zero in a group whose rewards are all equal, hence in a group of one.
    """
    if group_size == 1:
        return torch.zeros_like(rewards)
    grouped = rewards.view(-1, group_size)
    centred = grouped - grouped.mean(1, keepdim=True)
    advantages = centred / (grouped.std(1, keepdim=True) + 1e-4)
    # The mean of equal rewards is rounded: what is left of them is no advantage.
    equal = (grouped == grouped[:, :1]).all(1, keepdim=True)
    return advantages.masked_fill(equal, 0.0).flatten()


def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float,
) -> torch.Tensor:
    """Return INSPO Eq. 2 negated and without its KL term: the mean over rollouts of token means.

    Args:
        logprobs, old_logprobs: log π_θ and log π_old of each completion token, (B, C).
        advantages: (B,), or (B, C) if they differ from token to token.
        mask: 1 for the policy's own tokens, (B, C).
        clip: ε.

    Returns:
        scalar.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    weight = advantages if advantages.dim() == 2 else advantages[:, None]
    token = torch.min(ratio * weight, ratio.clamp(1 - clip, 1 + clip) * weight)
    return -((token * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def completion_logprobs(
    model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log π_θ of every completion token given the prompt to train on, and the loss mask.

    Returns:
        logprobs and mask, both (B, C), padded on the right with 0.
    """
    rows = [(t.prompt_ids, t.completion_ids) for t in trajectories]
    width_p = max(len(p) for p, _ in rows)
    width_c = max(len(c) for _, c in rows)
    ids = torch.zeros(len(rows), width_p + width_c, dtype=torch.long)
    attention = torch.zeros_like(ids)
    mask = torch.zeros(len(rows), width_c)
    for i, ((prompt, completion), trajectory) in enumerate(zip(rows, trajectories, strict=True)):
        start = width_p - len(prompt)
        ids[i, start : width_p + len(completion)] = torch.tensor([*prompt, *completion])
        attention[i, start : width_p + len(completion)] = 1
        mask[i, : len(completion)] = torch.tensor(trajectory.mask, dtype=torch.float)
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids.to(model.device),
        attention_mask=attention.to(model.device),
        position_ids=positions.to(model.device),
        logits_to_keep=width_c + 1,
    ).logits[:, :-1]
    logprobs = torch.log_softmax(logits.float() / temperature, -1)
    chosen = logprobs.gather(-1, ids[:, width_p:, None].to(model.device))[..., 0]
    return chosen * attention[:, width_p:].to(model.device), mask.to(model.device)
