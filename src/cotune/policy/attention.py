"""Choose among torch's attention kernels."""

import torch


def avoid_cudnn_attention() -> None:
    """Turn cuDNN's attention kernels off in this process; flash and memory-efficient ones take over.

    On Hopper and Blackwell GPUs, torch prefers cuDNN's since 2.11. Under a mask their gradient can be NaN
    (pytorch/pytorch#196678, huggingface/trl#7181), and sampling builds a plan for each new length of the cache.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
