"""Score completions with each distinct prompt fed to the policy once.

The rollouts of a group are trained on the same prompt, which TRL feeds again for each of them. Here its
keys and values are computed once and repeated, and the gradients of all completions flow back into them.
Without a GPU, TRL's head also scores the tokens of the prompt, and the scores are not used; here it does not.
"""

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
