"""Communication between ranks that roll out together, over torch.distributed."""

from typing import Any

import torch.distributed as dist

from cotune.protocols import Comm
from cotune.rollout.coordinator import SingleProcess


class TorchComm:
    """`protocols.Comm` on the default process group."""

    @property
    def rank(self) -> int:
        return dist.get_rank()

    @property
    def size(self) -> int:
        return dist.get_world_size()

    def broadcast(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def world() -> Comm:
    """Return the group of processes started together; only this one without others."""
    # A vLLM in the only training process initializes a group of its own.
    several = dist.is_initialized() and dist.get_world_size() > 1
    return TorchComm() if several else SingleProcess()
