"""The reference loop: one process, one update per step, readable from top to bottom.

The engines are tested against it, and it is the shortest complete statement of the method. Real
runs use an engine, which adds accumulation, a KL term, several processes, checkpoints and more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from cotune.methods.context_distillation import batch_weights, mean_over_rollouts, token_losses
from cotune.rollout.coordinator import Coordinator
from cotune.types import Distillation, Progress, Task, Trajectory


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the reference loop.

    Attributes:
        steps: T, rollout batches and updates.
        group_size: G, rollouts per question.
        steps_per_epoch: steps in an epoch, after which P²O evolves hints; None is never.
        learning_rate: AdamW's learning rate.
        clip: ε, the clip range of the importance ratio.
        max_grad_norm: gradients are clipped to this norm.
    """

    steps: int
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
) -> None:
    """Train weights and instructions together: INSPO's Algorithm 1 with any strategy.

    The loss is GRPO's with PPO's clip for all of them (FST's own is CISPO).

    Args:
        model: the policy; the coordinator's sampler must sample from this very model.
        coordinator: strategy, environment and sampler.
        tasks: returns the questions of a step, counted from 1.
        settings: sizes and the optimizer's settings.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    group_size, temperature = settings.group_size, coordinator.settings.temperature
    for step in range(1, settings.steps + 1):
        epoch = 0 if settings.steps_per_epoch is None else (step - 1) // settings.steps_per_epoch
        progress = Progress(step=step, epoch=epoch, total_steps=settings.steps)

        # Evolve, assign, roll out, observe.
        batch = coordinator.step(tasks(step), group_size, lambda progress=progress: progress)
        trajectories = batch.trajectories
        # GRPO updates the weights, and a teacher if there is one.
        distillation = coordinator.strategy.distillation
        loss = policy_loss(
            model, trajectories, group_size, settings.clip, temperature, distillation
        )
        if coordinator.strategy.has_teacher:
            loss = loss + teacher_loss(model, trajectories, temperature)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()


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
    old_logprobs = logprobs.detach().double().cpu().numpy()
    weights = batch_weights(trajectories, old_logprobs, advantages.tolist(), distillation)
    by_token = (advantages[:, None] * torch.from_numpy(weights)).to(logprobs)
    return grpo_loss(logprobs, logprobs.detach(), by_token, mask, clip)


def teacher_loss(
    model: PreTrainedModel, trajectories: Sequence[Trajectory], temperature: float = 1.0
) -> torch.Tensor:
    """Return the distillation loss of a batch: the mean over rollouts of token means.

    Rollouts without a teacher count as 0.

    Args:
        model: the policy, which is also the teacher, under the teacher's prompt.
        trajectories: (B,).
        temperature: softmax temperature at which the rollouts were sampled.
    """
    total = torch.zeros(())
    for trajectory in trajectories:
        if teacher_prompt := trajectory.teacher_prompt_ids:
            policy, ids, mask = completion_logits(
                model, trajectory.prompt_ids, trajectory, temperature
            )
            with torch.no_grad():
                teacher, _, _ = completion_logits(model, teacher_prompt, trajectory, temperature)
            losses, _gaps = token_losses(policy[None], teacher[None], ids[None])
            total = total + mean_over_rollouts(losses, mask[None])
    return total / len(trajectories)


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Normalise rewards within each group, INSPO Eq. 3: (r − mean) / (std + 1e-4).

    The standard deviation is the sample's (G − 1), as TRL computes it.

    Args:
        rewards: (B,), group after group.

    Returns:
        (B,); exactly zero in a group whose rewards are all equal, and so in a group of one.
    """
    if group_size == 1:
        return torch.zeros_like(rewards)
    grouped = rewards.view(-1, group_size)
    centred = grouped - grouped.mean(1, keepdim=True)
    advantages = centred / (grouped.std(1, keepdim=True) + 1e-4)
    # The mean of equal rewards is rounded, so a small remainder is not an advantage.
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
    rows: list[torch.Tensor] = []
    for trajectory in trajectories:
        logits, ids, _ = completion_logits(model, trajectory.prompt_ids, trajectory, temperature)
        rows.append(torch.log_softmax(logits, -1).gather(-1, ids[:, None])[:, 0])
    masks = [torch.tensor(t.trained_mask).to(rows[0]) for t in trajectories]
    return pad_sequence(rows, batch_first=True), pad_sequence(masks, batch_first=True)


def completion_logits(
    model: PreTrainedModel, prompt: Sequence[int], trajectory: Trajectory, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a model's logits at every completion token of one rollout, the tokens, and the loss mask.

    Args:
        prompt: the prompt that the model reads before the completion.

    Returns:
        logits divided by the temperature, (C, V); tokens and mask, (C,).
    """
    completion = torch.tensor(trajectory.completion_ids, device=model.device)
    ids = torch.tensor([*prompt, *trajectory.completion_ids], device=model.device)
    logits = model(input_ids=ids[None], logits_to_keep=len(completion) + 1).logits[0, :-1]
    mask = torch.tensor(trajectory.trained_mask, device=model.device)
    return logits.float() / temperature, completion, mask
