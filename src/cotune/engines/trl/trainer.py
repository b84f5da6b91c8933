"""GRPOTrainer without the work that cannot change its gradient."""

from typing import Any, cast

import torch
from trl import GRPOTrainer

# What a loss divides by, of those that stay right when rows without advantage are left out:
# its number of rows (then the loss is scaled back), or a count fixed beforehand.
_BY_ROWS = ("grpo", "dr_grpo")
_BY_FIXED_COUNT = ("dapo", "cispo")


class JointTrainer(GRPOTrainer):
    """Leaves out rollouts whose advantage is zero, and padding that a micro-batch does not need.

    A group whose rewards are all equal has no advantage, hence no gradient; on a question that is
    always or never solved that is every rollout. They are passed over where nothing but the
    advantage weighs them: β = 0, no entropy bonus, no router loss, and a loss that divides by rows
    or by a fixed count. Logged entropy and clip ratios are then those of the other rollouts.
    """

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
        if self._passes_over_zero_advantages():
            rows = len(inputs["advantages"])
            kept = informative_rows(inputs["advantages"])
            # TRL gathers a value of every row, so all ranks keep as many.
            kept = filled_up(kept, self._most_of_all_ranks(len(kept)), rows)
            inputs = with_rows(inputs, kept)
            if self.loss_type in _BY_ROWS:
                scale = len(inputs["advantages"]) / rows
        loss = super().compute_loss(
            model, without_padding(inputs), return_outputs, num_items_in_batch
        )
        return loss * scale

    def _most_of_all_ranks(self, count: int) -> int:
        if self.accelerator.num_processes == 1:
            return count
        here = torch.tensor([count], device=self.accelerator.device)
        return int(cast(torch.Tensor, self.accelerator.gather(here)).max())

    def _passes_over_zero_advantages(self) -> bool:
        return (
            self.beta == 0.0
            and not self._entropy_bonus_enabled
            and not self.aux_loss_enabled
            and self.top_entropy_quantile == 1.0
            and self.loss_type in (*_BY_ROWS, *_BY_FIXED_COUNT)
        )


def informative_rows(advantages: torch.Tensor) -> torch.Tensor:
    """Indices of the rows with an advantage; the first row where there is none.

    Args:
        advantages: (B,) or (B, C).
    """
    nonzero = advantages != 0 if advantages.dim() == 1 else (advantages != 0).any(1)
    rows = nonzero.nonzero()[:, 0]
    return rows if len(rows) else torch.zeros(1, dtype=torch.long, device=advantages.device)


def filled_up(rows: torch.Tensor, count: int, total: int) -> torch.Tensor:
    """The rows and the first of the others, `count` in all, in order.

    Args:
        rows: indices below `total`, fewer than `count` or as many.
    """
    if len(rows) >= count:
        return rows
    chosen = set(rows.tolist())
    others = [i for i in range(total) if i not in chosen][: count - len(rows)]
    return torch.tensor(sorted([*chosen, *others]), device=rows.device)


def with_rows(inputs: dict[str, Any], rows: torch.Tensor) -> dict[str, Any]:
    """The same inputs for some rows; entries that are not one value a row stay as they are."""
    count = len(inputs["advantages"])
    return {
        name: value[rows] if _per_row(value, count) else value for name, value in inputs.items()
    }


def without_padding(inputs: dict[str, Any]) -> dict[str, Any]:
    """Without prompt columns and completion columns that hold padding in every row."""
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


def _per_row(value: Any, count: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == count
