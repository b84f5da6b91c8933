"""One response of a Hugging Face model under vLLM's sampling parameters; knows nothing of veRL."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

# What veRL always sends, with the only values that are done here.
_FIXED: dict[str, tuple[object, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (-1, 0),
    "repetition_penalty": (1, 1.0),
    "n": (1,),
}
_KNOWN = {
    *_FIXED, "temperature", "max_tokens", "max_new_tokens", "stop", "stop_token_ids", "ignore_eos",
    "seed", "skip_special_tokens", "include_stop_str_in_output", "logprobs",
}  # fmt: skip


def checked(params: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters as a dict.

    Raises:
        ValueError: for a parameter, or a value of one, that `respond` does not honour.
    """
    for name, value in params.items():
        if name not in _KNOWN:
            raise ValueError(f"sampling_params: {name!r} is not known to the CPU rollout")
        if name in _FIXED and value not in _FIXED[name]:
            raise ValueError(f"sampling_params: {name}={value!r}, the CPU rollout does not do that")
    return dict(params)


@torch.no_grad()
def respond(
    model: Any,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    params: Mapping[str, Any],
    max_tokens: int,
    random: torch.Generator,
) -> tuple[list[int], list[float]]:
    """Writes one response, token after token, with the model's KV cache.

    Args:
        model: a causal language model in evaluation mode.
        tokenizer: for stop strings.
        prompt_ids: at least one token.
        params: vLLM's names. `temperature` 0 is greedy; `stop` ends the response with the token that
            completes one of the strings, which is kept; `seed` makes the draws a function of the
            logits alone, whatever was generated before.
        max_tokens: at most so many new tokens.
        random: draws where no `seed` is given.

    Returns:
        The new tokens, and of each its log-probability under the distribution it was drawn from
        (greedy: under the model's own).
    """
    params = checked(params)
    temperature = float(params.get("temperature", 1.0))
    seed = params.get("seed")
    draws = random if seed is None else torch.Generator().manual_seed(int(seed))
    ends = set(params.get("stop_token_ids") or ())
    if not params.get("ignore_eos"):
        ends |= _end_tokens(model)
    stop = params.get("stop") or ()
    plain = bool(params.get("skip_special_tokens", True))
    ids: list[int] = []
    logprobs: list[float] = []
    context, cache = torch.tensor([list(prompt_ids)]), None
    while len(ids) < max_tokens:
        out = model(input_ids=context, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        chances = torch.log_softmax(out.logits[0, -1].double() / (temperature or 1.0), -1)
        if temperature == 0:
            token = int(chances.argmax())
        else:
            token = int(torch.multinomial(chances.exp(), 1, generator=draws))
        ids.append(token)
        logprobs.append(float(chances[token]))
        if token in ends:
            break
        if stop and any(s in tokenizer.decode(ids, skip_special_tokens=plain) for s in stop):
            break
        context = torch.tensor([[token]])
    return ids, logprobs


def _end_tokens(model: Any) -> set[int]:
    """What ends a response: one id or several, of the generation config or the model's."""
    configured = model.generation_config.eos_token_id
    if configured is None:
        configured = model.config.eos_token_id
    if configured is None:
        return set()
    return set(configured) if isinstance(configured, list) else {int(configured)}
