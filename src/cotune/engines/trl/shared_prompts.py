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


def completion_logits(
    model: Any, batch: dict[str, Any], temperature: float, shared: bool
) -> torch.Tensor:
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
