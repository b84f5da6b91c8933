"""Registers the rollout "hf_cpu" when imported: `actor_rollout_ref.model.external_lib`.

veRL imports that library in every process that reads the model's configuration: the task runner,
the training workers, the workers of the agent loop.
"""

import os

import torch.distributed
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

NAME = "hf_cpu"
"""The value of `actor_rollout_ref.rollout.name`."""


def _replica() -> type[RolloutReplica]:
    from tests.engines.verl.cpu.rollout import HFReplica

    return HFReplica


def _join_group() -> None:
    """Makes the process group of a training worker before veRL does.

    veRL would ask for the backend "cpu:gloo,<device>:<backend>", which names the CPU twice here and
    is refused by torch; it leaves a group alone that is there already.
    """
    ranked = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    reachable = "DIST_INIT_METHOD" in os.environ or "MASTER_ADDR" in os.environ
    if ranked and reachable and not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            backend="gloo",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            init_method=os.environ.get("DIST_INIT_METHOD"),
        )


RolloutReplicaRegistry.register(NAME, _replica)
# The workers' side of a rollout has a table and no function to add to it.
base._ROLLOUT_REGISTRY[(NAME, "async")] = "tests.engines.verl.cpu.rollout.WeightSender"
_join_group()
