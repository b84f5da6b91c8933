"""Score completions with each distinct prompt fed to the policy once.

The rollouts of a group are trained on the same prompt, which TRL feeds again for each of them. Here its
keys and values are computed once and repeated, and the gradients of all completions flow back into them.
Without a GPU, TRL's head also scores the tokens of the prompt, and the scores are not used; here it does not.
"""

from typing import Any

import torch

from cotune.policy.prompt_cache import prompt_cache


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
