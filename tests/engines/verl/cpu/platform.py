"""A platform "cpu" for veRL, registered when this module is imported.

veRL imports it where the environment says VERL_USE_EXTERNAL_MODULES=<this module> and
VERL_PLATFORM=cpu. Training ranks run on gloo. Ray is told of as many "GPUs" as there are ranks:
they are names to count by, no device is behind them.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _nothing(*_args: object, **_kwargs: object) -> None:
    return None


def _zero(*_args: object, **_kwargs: object) -> int:
    return 0


def _device_module() -> types.ModuleType:
    """torch.cpu, and of torch.cuda what veRL calls without asking for the device first."""
    module = types.ModuleType("cpu_as_accelerator")
    for name in ("Stream", "StreamContext", "current_stream", "stream", "synchronize"):
        setattr(module, name, getattr(torch.cpu, name))
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": _zero,
        "get_device_name": lambda *_: "cpu",
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        # Free and total bytes; veRL only logs them.
        "mem_get_info": lambda *_: (0, 0),
    }
    for name in ("set_device", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        functions[name] = _nothing
    for name in ("memory_allocated", "memory_reserved"):
        functions[name] = functions["max_" + name] = _zero
    for name, value in functions.items():
        setattr(module, name, value)
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Every method of veRL's platform, for a processor alone."""

    _module = _device_module()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:  # type: ignore[override]
        # veRL hands this to `Tensor.to`, where 0 would mean the first CUDA device.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CPU_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass
