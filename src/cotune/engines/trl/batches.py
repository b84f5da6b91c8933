"""A batch of rollouts, as TRL gives it to the loss: its rows and columns, and what the policy makes of them.

The rollouts of a group are trained on the same prompt, which TRL feeds again for each of them. Here its
keys and values are computed once and repeated, and the gradients of all completions flow back into them.
Without a GPU, TRL's head also scores the tokens of the prompt, and the scores are not used; here it does not.
"""

from collections.abc import Sequence
from typing import Any

import torch

from cotune.policy.sampling import prompt_cache

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
