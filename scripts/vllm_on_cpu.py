"""Let vLLM's CPU build load other weights than those it started with, as a trainer must."""

from typing import Any

import torch


def unpack_weights() -> None:
    """Keep linear layers as they are, where vLLM's CPU build would pack their weights; call before vLLM starts."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import vllm.model_executor.layers.utils as layers
    import vllm.triton_utils.dispatcher as dispatcher

    def unpacked(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # It takes every object with a __dict__ for one with the methods of a dict, which some of torch's are not.
    def fields(value: Any) -> dict[str, Any]:
        attributes = vars(value)
        return attributes if isinstance(attributes, dict) else {}

    layers.dispatch_cpu_unquantized_gemm = unpacked
    dispatcher.vars = fields


def batch_prompts(tokens: int) -> None:
    """Let a step of vLLM take `tokens` tokens of prompts, where TRL allows 4096; call before vLLM starts.

    A prompt that is split between steps takes back a draw of its generator, which one of the CPU cannot.
    """
    import trl.generation.vllm_generation as vllm_generation

    engine = vllm_generation.LLM
    vllm_generation.LLM = lambda **options: engine(**options | {"max_num_batched_tokens": tokens})
