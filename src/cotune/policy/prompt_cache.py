"""Feed each distinct prompt to a policy once, however many rows continue it; gradients flow back."""

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from cotune.errors import EngineError
from cotune.policy.sampling import attends_fully


def can_share(policy: PreTrainedModel) -> bool:
    """Return whether a policy's layers can continue the keys and values of a prompt.

    Gradient checkpointing recomputes layers without a cache.
    """
    checkpoints = any(
        getattr(module, "gradient_checkpointing", False) for module in policy.modules()
    )
    return attends_fully(policy) and not (policy.training and checkpoints)


def prompt_cache(model: Any, prompts: torch.Tensor, mask: torch.Tensor) -> Cache | None:
    """Return the keys and values of all rows' prompts; each distinct prompt is fed once. None if P = 0.

    Args:
        prompts: padded on the left, (B, P).
        mask: 1 for tokens, 0 for padding, (B, P).

    Raises:
        EngineError: the model kept no keys and values.
    """
    length = prompts.shape[1]
    if length == 0:
        return None
    cache = Cache(layer_class_to_replicate=DynamicLayer)
    distinct, which = torch.cat([prompts, mask], 1).unique(dim=0, return_inverse=True)
    model(
        input_ids=distinct[:, :length],
        attention_mask=distinct[:, length:],
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    if cache.get_seq_length() != length:
        raise EngineError(
            f"the policy kept the keys of {cache.get_seq_length()} of {length} tokens"
        )
    cache.batch_select_indices(which)
    return cache
