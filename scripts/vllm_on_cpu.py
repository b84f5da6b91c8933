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
