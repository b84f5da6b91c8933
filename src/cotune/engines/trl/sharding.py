"""Training sharded over processes: DDP, FSDP2, DeepSpeed's ZeRO stages 1 and 2.

Under ZeRO 1 and 2 every process holds whole weights; gradients and AdamW's moments are sharded.
FSDP2 also shards the weights: they are gathered in the forward pass's dtype while rollouts are
sampled, and in their own dtype on rank 0's CPU when they are saved.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate.utils import is_peft_model
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer

from cotune.errors import ConfigError
from cotune.policy.adapters import read_weights
from cotune.protocols import State

_SUPPORTED = ("none", "fsdp2", "zero0", "zero1", "zero2")


def is_sharded(model: Any) -> bool:
    """Tell whether a model's weights are sharded over processes (FSDP2)."""
    return isinstance(model, FSDPModule)


@contextmanager
def gather(model: Any) -> Iterator[None]:
    """Gather a model's whole weights for forward passes; all processes enter together.

    Inside, processes may make different numbers of forward passes. Do not write to the weights.
    """
    groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
    # Each module records whether it frees its weights after a forward pass; torch has only a setter.
    settings = [_after_forward(module) for module in groups]
    for module in groups:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module, meshes in zip(groups, settings, strict=True):
            for group, mesh in zip(_parameter_groups(module), meshes, strict=True):
                group.post_forward_mesh_info = mesh
            module.reshard()


def _parameter_groups(module: FSDPModule) -> list[Any]:
    state: Any = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    # torch before 2.12 has one at most
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _after_forward(module: FSDPModule) -> list[Any]:
    return [group.post_forward_mesh_info for group in _parameter_groups(module)]


def whole_weights(model: Any) -> dict[str, Any] | None:
    """Return a sharded model's trained weights on the CPU by name; call on all processes together.

    Returns:
        The weights on rank 0 and nothing on the others; None if the model is not sharded.
    """
    if not is_sharded(model):
        return None
    options = StateDictOptions(
        full_state_dict=True, cpu_offload=True, ignore_frozen_params=hasattr(model, "peft_config")
    )
    weights = get_model_state_dict(model, options=options)
    # Save tied weights once, as for a model that is not sharded.
    tied = {n for n, _ in model.named_parameters(remove_duplicate=False)}
    tied -= {n for n, _ in model.named_parameters()}
    return {name: weight for name, weight in weights.items() if name not in tied}


def restore_weights(model: Any, folder: Path) -> None:
    """Load a policy's saved weights, or a checkpoint's, into it; call on all processes together."""
    if is_sharded(model):
        weights = read_weights(model, folder) if dist.get_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
        set_model_state_dict(model, weights, options=options)
    elif (shards := folder / f"{FSDP_MODEL_NAME}_0").is_dir():
        # An FSDP2 checkpoint with state_dict_type SHARDED_STATE_DICT; `state_dict` is read into, in place.
        weights = {"model": model.state_dict()}
        dcp.load(weights, storage_reader=dcp.FileSystemReader(shards))
    else:
        model.load_state_dict(read_weights(model, folder), strict=not is_peft_model(model))


def sharding_of(trainer: Trainer) -> str:
    """Name how a trainer shards its training: none (including DDP), or fsdp or zero with its number."""
    state = trainer.accelerator.state
    if (fsdp := getattr(state, "fsdp_plugin", None)) is not None:
        return f"fsdp{fsdp.fsdp_version}"
    if (deepspeed := getattr(state, "deepspeed_plugin", None)) is not None:
        return f"zero{deepspeed.zero_stage}"
    return "none"


def check_sharding(trainer: Trainer) -> None:
    """Raise ConfigError for a kind of sharding with which no process could sample, or restore the policy."""
    sharding = sharding_of(trainer)
    plugin: Any = trainer.accelerator.state.fsdp_plugin if sharding == "fsdp2" else None
    if sharding not in _SUPPORTED:
        raise ConfigError(
            f"training is sharded by {sharding}; expected FSDP version 2 (fsdp_config.version: 2, or fsdp_version: 2 in "
            "an accelerate configuration) or DeepSpeed's ZeRO stage 1 or 2, so that each process can sample from whole "
            "weights"
        )
    if plugin is not None and plugin.cpu_ram_efficient_loading:
        raise ConfigError(
            "FSDP's cpu_ram_efficient_loading is on, but every process restores its own weights; set "
            "fsdp_config.cpu_ram_efficient_loading: false, or in an accelerate configuration "
            "fsdp_cpu_ram_efficient_loading: false"
        )


def spread(trainer: Trainer) -> State:
    """Return the sharding, which is saved with a checkpoint so that a resume can compare it."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    return {"sharding": sharding_of(trainer), "processes": processes}


def check_spread(saved: State, trainer: Trainer) -> None:
    """Raise ConfigError if a checkpoint's optimizer cannot be read under the current sharding.

    The trainer would silently start with a new optimizer.
    """
    was = saved["sharding"]
    now = sharding_of(trainer)
    if was != now:
        raise ConfigError(
            f"training.engine_args: the saved run was trained with sharding {was}, this one with {now}, "
            "which cannot read its optimizer; set fsdp or deepspeed as before"
        )
    processes = spread(trainer)["processes"]
    if was.startswith("zero") and saved["processes"] != processes:
        raise ConfigError(
            f"the saved run was trained by {saved['processes']} processes, this one has {processes}, and "
            f"DeepSpeed's checkpoint needs as many; start {saved['processes']} processes"
        )
