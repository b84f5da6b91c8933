"""GRPOTrainer's update with distillation, which skips work that cannot change the gradient.

The rollouts of a group are trained on the same prompt, which TRL feeds again for each of them. Here its
keys and values are computed once and repeated, and the gradients of all completions flow back into them.
Without a GPU, TRL's head also scores the tokens of the prompt, and the scores are not used; here it does not.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from cotune.engines.joint import world
from cotune.engines.trl.checks import has_fused_head
from cotune.engines.trl.vllm_sampler import starting_vllm
from cotune.methods.context_distillation import (
    Floats,
    batch_weights,
    is_distilled,
    mean_over_rollouts,
    ratio_metrics,
    token_losses,
)
from cotune.policy.adapters import make_savable
from cotune.policy.sampling import can_share, prompt_cache
from cotune.types import Trajectory

if TYPE_CHECKING:
    from cotune.engines.trl.trl_joint import TRLJoint

Batch = dict[str, Any]
"""`prompt_ids` and `prompt_mask` (B, P), `completion_ids` and `completion_mask` (B, C), `advantages` (B,)
or (B, C), other tensors of B rows, and entries that are not per row."""


def informative_rows(advantages: torch.Tensor) -> torch.Tensor:
    """Return the indices of the rows with an advantage, (B,) or (B, C); the first row if there is none."""
    nonzero = advantages != 0 if advantages.dim() == 1 else (advantages != 0).any(1)
    rows = nonzero.nonzero()[:, 0]
    return rows if len(rows) else torch.zeros(1, dtype=torch.long, device=advantages.device)


def fill_up(rows: torch.Tensor, count: int, total: int) -> torch.Tensor:
    """Return the rows, indices below `total`, plus the first of the other rows, `count` in all, in order."""
    if len(rows) >= count:
        return rows
    chosen = set(rows.tolist())
    others = [i for i in range(total) if i not in chosen][: count - len(rows)]
    return torch.tensor(sorted([*chosen, *others]), device=rows.device)


def with_rows(inputs: Batch, rows: torch.Tensor) -> Batch:
    """Return the inputs of some rows; entries that are not per-row stay unchanged."""
    count = len(inputs["advantages"])
    return {
        name: value[rows] if _per_row(value, count) else value for name, value in inputs.items()
    }


def without_padding(inputs: Batch) -> Batch:
    """Return the inputs without prompt and completion columns that are padding in every row."""
    prompt_used = inputs["prompt_mask"].any(0).nonzero()
    completion_used = inputs["completion_mask"].any(0).nonzero()
    first = int(prompt_used[0]) if len(prompt_used) else 0
    width = inputs["completion_mask"].shape[1]
    end = int(completion_used[-1]) + 1 if len(completion_used) else width
    trimmed = dict(inputs)
    for name, value in inputs.items():
        if name in ("prompt_ids", "prompt_mask"):
            trimmed[name] = value[:, first:]
        elif isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[1] == width:
            trimmed[name] = value[:, :end]
    return trimmed


def by_prompt(batches: Sequence[Batch]) -> list[Batch]:
    """Sort the rows of equally large batches by prompt, in the order of its first row, into as many such batches."""
    count = len(batches[0]["advantages"])
    all_rows = {
        name: torch.cat([batch[name] for batch in batches]) if _per_row(value, count) else value
        for name, value in batches[0].items()
    }
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(all_rows["prompt_ids"].tolist()):
        rows.setdefault(tuple(prompt), []).append(row)
    order = torch.tensor([row for same in rows.values() for row in same])
    return [with_rows(all_rows, chosen) for chosen in order.split(count)]


def _per_row(value: Any, count: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == count


def score_completions(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies of the last `width` tokens, each (B, width).

    Positions are counted as TRL counts them: from the first column, padding included.

    Args:
        model: a policy that `can_share`, with TRL's fused head.
        ids: prompts, padded on the left, and completions, padded on the right, (B, P + width).
        mask: 1 for tokens, 0 for padding, (B, P + width).
    """
    # A prompt's last token predicts the first of the completion, so it is fed with the completion.
    start = ids.shape[1] - width - 1
    completions = ids[:, start + 1 :]
    scored = model(
        input_ids=ids[:, start:-1],
        attention_mask=mask[:, :-1],
        past_key_values=prompt_cache(model, ids[:, :start], mask[:, :start]),
        shift_labels=completions.masked_fill(mask[:, start + 1 :] == 0, -100),
        fused_lm_head=True,
    )
    return scored.log_probs, scored.entropy


def completion_logits(model: Any, batch: Batch, temperature: float, shared: bool) -> torch.Tensor:
    """Return logits at every completion token, divided by the temperature, (B, C, V).

    Args:
        batch: prompt_ids and prompt_mask (B, P), completion_ids and completion_mask (B, C).
        shared: feed each distinct prompt once; the model must be able to (`can_share`).
    """
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    # A prompt's last token predicts the first of the completion, so it is fed with the completion.
    start = batch["prompt_ids"].shape[1] - 1 if shared else 0
    logits = model(
        input_ids=ids[:, start:-1],
        attention_mask=mask[:, :-1],
        past_key_values=prompt_cache(model, ids[:, :start], mask[:, :start]),
        use_cache=False,
        logits_to_keep=batch["completion_ids"].shape[1],
    ).logits
    return logits.float() / temperature


# Divisors of the losses that stay correct when rows without advantage are left out: the number
# of rows (the loss is then scaled back), or a fixed count.
_BY_ROWS = ("grpo", "dr_grpo")
_BY_FIXED_COUNT = ("dapo", "cispo")
_FED = ("prompt_mask", "completion_mask")


class PolicyUpdate(GRPOTrainer):
    """Train on one prompt with rollouts sampled under another (P²O Eq. 4).

    Each token's weight from `cotune.methods.context_distillation` multiplies its advantage, so the loss
    keeps its denominator and its KL term. With a teacher (`cotune.methods.context_distillation`) its loss is added,
    for which the rollouts that it reads are fed once more to the policy and once to the teacher.

    Rollouts with zero advantage are not fed, which saves work and changes no gradient; nor is padding that a
    micro-batch does not need. A prompt that several rollouts of a micro-batch share is fed once.

    A group with equal rewards has exactly no advantage (TRL alone leaves a rounding error). These rollouts are skipped
    if nothing but the advantage weights them: β = 0, no entropy bonus, no router loss, and a loss that divides by rows
    or by a fixed count. Logged entropy and clip ratios then cover only the other rollouts.

    Args:
        joint: the run whose rollouts are trained on; it brings the trainer's arguments and data.
        callbacks: called before the run's own.
        arguments: further arguments of GRPOTrainer, such as `peft_config`.

    Attributes:
        teaches: whether the run has a last stage, whose successes have a teacher.
        scores_shared: whether prompts that rollouts share are scored once, with TRL's fused head. Else TRL, or the
            class that was given for it, scores every rollout with its prompt.
    """

    def __init__(
        self,
        model: Any,
        joint: "TRLJoint",
        callbacks: Sequence[TrainerCallback] = (),
        **arguments: Any,
    ) -> None:
        self.joint = joint
        self.teaches = joint.coordinator.strategy.has_teacher
        with starting_vllm(self), _leaving_no_folder(joint.state_folder), warnings.catch_warnings():
            # TRL warns of an experimental API that the user does not call.
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")
            super().__init__(
                model,
                reward_funcs=joint.reward_funcs,
                args=joint.args,
                train_dataset=joint.dataset,
                processing_class=joint.tokenizer,
                callbacks=[*callbacks, *joint.callbacks],
                rollout_func=cast(Any, joint.rollout_func),
                **arguments,
            )
        self.scores_shared = has_fused_head(self.model) and not self._replaces(
            "_get_per_token_logps_and_entropies"
        )
        make_savable(self.model)
        joint.bind(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        training: bool = cast(Any, self.model).training
        joint = self.joint
        if self.log_completions:
            self._show_prompts(joint.batch.trajectories)
        if training and not joint.parts.settings.frozen:
            # TRL divides what rounding leaves of equal rewards by 1e-4. Normalised one by one, the functions'
            # values may differ although their sums are equal.
            if self.multi_objective_aggregation == "sum_then_normalize":
                output["advantages"][joint.flat_rows(len(inputs))] = 0.0
            if joint.batch.needs_token_weights:
                self._distil(output, joint)
            if self.teaches:
                self._add_teacher_prompts(output, joint)
        return output

    def _show_prompts(self, rollouts: Sequence[Trajectory]) -> None:
        """Put the prompts in the table of completions in place of the tasks' ids, which TRL was given."""
        prompts = self._logs["prompt"]
        environment = self.joint.parts.environment
        for _ in rollouts[: len(prompts)]:
            prompts.pop()
        prompts.extend(environment.messages(t.task, t.assignment.trained) for t in rollouts)

    def _add_teacher_prompts(self, output: dict[str, Any], joint: "TRLJoint") -> None:
        """Add `teacher_prompt_ids` and `teacher_prompt_mask`, (B, P), empty in rows without a teacher."""
        rollouts = joint.rollouts_here(len(output["advantages"]))
        prompts = [t.teacher_prompt_ids for t in rollouts]
        width = max(1, *map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            if prompt:
                ids[row, -len(prompt) :] = torch.tensor(prompt)
                mask[row, -len(prompt) :] = 1
        output["teacher_prompt_ids"] = ids.to(self.accelerator.device)
        output["teacher_prompt_mask"] = mask.to(self.accelerator.device)

    def _distil(self, output: dict[str, Any], joint: "TRLJoint") -> None:
        """Weight the advantages per token, to (B, C); on all ranks, even if a rank's own rollouts need nothing."""
        settings = joint.coordinator.strategy.distillation
        rollouts = joint.rollouts_here(len(output["advantages"]))
        logprobs = output.get("old_per_token_logps")
        tokens_fed = 0
        if logprobs is None:
            distilled = [row for row, t in enumerate(rollouts) if is_distilled(t)]
            logprobs, tokens_fed = self._score_on_training_prompts(output, distilled, joint)
        before = logprobs.double().cpu().numpy()
        ratios: list[tuple[Floats, Floats]] = []
        advantages = output["advantages"]
        weights = batch_weights(rollouts, before, advantages.tolist(), settings, ratios)
        output["advantages"] = advantages[:, None] * torch.from_numpy(weights).to(advantages)
        self._log_distillation(ratios, tokens_fed, joint)

    def _score_on_training_prompts(
        self, output: dict[str, Any], rows: list[int], joint: "TRLJoint"
    ) -> tuple[torch.Tensor, int]:
        """Compute log π_θ of some rows' completions on their training prompts, before the update.

        Runs in evaluation mode, like the sampling of the context ratio's other side.
        Returns (B, C), zero in the other rows, and the number of tokens fed, without padding.
        """
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
        batch = {name: output[name] for name in names}
        logprobs = torch.zeros(output["completion_ids"].shape, device=self.accelerator.device)
        tokens_fed = 0
        size = self.args.per_device_train_batch_size
        with torch.no_grad(), joint.policy() as policy:
            for start in range(0, len(rows), size):
                chosen = torch.tensor(rows[start : start + size], device=logprobs.device)
                part = without_padding(with_rows(batch, chosen))
                ids = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
                attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
                width = part["completion_ids"].shape[1]
                scored = self._get_per_token_logps_and_entropies(policy, ids, attention, width)[0]
                logprobs[chosen, :width] = scored.float()
                tokens_fed += int(attention.sum())
        return logprobs, tokens_fed

    def _log_distillation(
        self, ratios: list[tuple[Floats, Floats]], tokens_fed: int, joint: "TRLJoint"
    ) -> None:
        """Log the ratios of all ranks and the extra pass's tokens, the cost of distillation."""
        ranks: list[Any] = joint.coordinator.comm.gather((ratios, tokens_fed))
        metrics = ratio_metrics([row for rank_ratios, _ in ranks for row in rank_ratios])
        metrics["p2o/logprob_tokens"] = float(sum(rank_tokens for _, rank_tokens in ranks))
        joint.metrics = {**joint.metrics, **metrics}
        for name, value in metrics.items():
            self._metrics["train"][name].append(value)

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        """Save a checkpoint. Older ones are deleted once cotune's state has completed it."""
        limit = self.args.save_total_limit
        self.args.save_total_limit = None
        try:
            super()._save_checkpoint(*arguments, **options)
        finally:
            self.args.save_total_limit = limit

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Run a training step; with a frozen policy, only sample, since there is no gradient."""
        if not self.joint.parts.settings.frozen:
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        self._prepare_inputs(inputs)  # rolls out at the start of a batch
        self._step += 1
        return torch.zeros((), device=self.accelerator.device)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        previous_batches = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        micro_batches = self._buffered_inputs
        if micro_batches is None or micro_batches is previous_batches:
            return inputs
        shares = self.scores_shared and self._shares_prompts(self.model)
        if not (self._adds_up() and shares):
            return inputs
        # TRL has shuffled the rollouts of these micro-batches.
        size = self.args.gradient_accumulation_steps
        steps = [
            by_prompt(micro_batches[start : start + size])
            for start in range(0, len(micro_batches), size)
        ]
        self._buffered_inputs = [batch for batches in steps for batch in batches]
        return self._buffered_inputs[self._step % len(micro_batches)]

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        # The router loss also counts the tokens of prompts.
        shares = self.scores_shared and self._shares_prompts(model)
        by_row = options.get("compute_aux_loss") or not shares
        if by_row or any(torch.is_tensor(value) for value in options.values()):  # images
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **options
            )
        size = batch_size or len(input_ids)
        with self.accelerator.autocast():
            scored = [
                score_completions(model, ids, mask, logits_to_keep)
                for ids, mask in zip(input_ids.split(size), attention_mask.split(size), strict=True)
            ]
        logps = torch.cat([logprobs for logprobs, _ in scored])
        if not options.get("compute_entropy"):
            return logps, None, None
        return logps, torch.cat([entropies for _, entropies in scored]), None

    def _replaces(self, *names: str) -> bool:
        """Return whether a class between this one and GRPOTrainer (JointTrainer's `trainer_class`) has its own methods."""
        inherited: Any = super()
        return any(
            getattr(inherited, name).__func__ is not getattr(GRPOTrainer, name) for name in names
        )

    def _shares_prompts(self, model: Any) -> bool:
        # DDP and sharding expect one forward pass for each backward pass.
        single_process = self.accelerator.num_processes == 1
        return single_process and can_share(self.accelerator.unwrap_model(model))

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        if not self.model.training:  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        scale = 1.0
        micro_batch = inputs
        if self._passes_over_zero_advantages():
            rows = len(inputs["advantages"])
            informative = informative_rows(inputs["advantages"])
            # TRL gathers a value for every row, so all ranks must feed equally many.
            count = max(world().gather(len(informative)))
            inputs = with_rows(inputs, fill_up(informative, count, rows))
            if self.loss_type in _BY_ROWS:
                scale = len(inputs["advantages"]) / rows
        loss = super().compute_loss(
            model, without_padding(inputs), return_outputs, num_items_in_batch
        )
        if "teacher_prompt_ids" not in inputs:
            return loss * scale
        return loss * scale + self._teacher_loss(model, micro_batch)

    def _teacher_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Return this micro-batch's share of the teacher's loss, and log what it compares."""
        joint = self.joint
        total = len(inputs["advantages"])
        rows = inputs["teacher_prompt_mask"].any(1).nonzero()[:, 0]
        if not len(rows):
            self._log_teacher([0.0, total, 0.0, 0.0, 0.0, 0.0], joint)
            return 0.0
        taught = with_rows(inputs, rows)
        prompts = {name: taught[f"teacher_{name}"] for name in ("prompt_ids", "prompt_mask")}
        under_teacher = without_padding({**taught, **prompts})
        under_policy = without_padding(taught)
        with torch.no_grad(), self.accelerator.autocast(), joint.policy() as policy:
            teacher_logits = completion_logits(
                policy, under_teacher, self.temperature, self._shares_prompts(policy)
            )
        # Apart from the teacher's: torch before 2.11 would reuse its copies of the weights, without a gradient.
        with self.accelerator.autocast():
            # Unwrapped: DDP expects equally many forward passes of all processes.
            policy_logits = completion_logits(
                self.accelerator.unwrap_model(model),
                under_policy,
                self.temperature,
                self._shares_prompts(model),
            )
        # The tokens that the policy wrote, not those of tools.
        mask = under_policy["completion_mask"] * under_policy.get("tool_mask", 1)
        losses, gaps = token_losses(policy_logits, teacher_logits, under_policy["completion_ids"])
        fed = [batch[name].sum() for batch in (under_teacher, under_policy) for name in _FED]
        sums = [(values * mask).sum() for values in (losses.detach(), gaps)]
        self._log_teacher(
            [len(rows), total, float(sum(fed)), *map(float, (mask.sum(), *sums))], joint
        )
        share = len(rows) / total / self.current_gradient_accumulation_steps
        return share * mean_over_rollouts(losses, mask)

    def _log_teacher(self, counts: list[float], joint: "TRLJoint") -> None:
        """Log the counts of all ranks: rows taught, rows, tokens fed, the policy's tokens, and sums over these."""
        by_count = zip(*joint.coordinator.comm.gather(counts), strict=True)
        rows, total, fed, policy_tokens, *sums = map(sum, by_count)
        metrics = {"share": rows / total, "tokens": fed}
        if rows:
            means = [value / max(1, policy_tokens) for value in sums]
            metrics |= dict(zip(("loss", "gap"), means, strict=True))
        for name, value in metrics.items():
            self._metrics["train"][f"distil/{name}"].append(value)

    def _passes_over_zero_advantages(self) -> bool:
        return self.beta == 0.0 and self._adds_up()

    def _adds_up(self) -> bool:
        """Return whether a step's loss is the sum over its rollouts, however they share micro-batches."""
        return (
            not self._entropy_bonus_enabled
            and not self.aux_loss_enabled
            and self.top_entropy_quantile == 1.0
            and self.loss_type in (*_BY_ROWS, *_BY_FIXED_COUNT)
            and not self._replaces("compute_loss", "_compute_loss")
        )


@contextmanager
def _leaving_no_folder(folder: Path) -> Iterator[None]:
    """Remove the output folder that a trainer creates when it is constructed: the run creates its own."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # one of them is not empty
            for path in missing:
                path.rmdir()
