"""Rows and columns of a batch of rollouts, as TRL gives it to the loss."""

from collections.abc import Sequence
from typing import Any

import torch

Batch = dict[str, Any]
"""`prompt_ids` and `prompt_mask` (B, P), `completion_ids` and `completion_mask` (B, C), `advantages` (B,)
or (B, C), other tensors of B rows, and entries that are not per row."""


def informative_rows(advantages: torch.Tensor) -> torch.Tensor:
    """Return the indices of the rows with an advantage; the first row if there is none.

    Args:
        advantages: (B,) or (B, C).
    """
    nonzero = advantages != 0 if advantages.dim() == 1 else (advantages != 0).any(1)
    rows = nonzero.nonzero()[:, 0]
    return rows if len(rows) else torch.zeros(1, dtype=torch.long, device=advantages.device)


def fill_up(rows: torch.Tensor, count: int, total: int) -> torch.Tensor:
    """Return the rows plus the first of the other rows, `count` in all, in order.

    Args:
        rows: indices below `total`, at most `count` of them.
    """
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
    """Sort the rows of equally large batches by prompt, so that rows with the same prompt are in one batch.

    Returns:
        As many batches of the same size. Prompts are in the order of their first rows.
    """
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
