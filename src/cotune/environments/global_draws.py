"""Random draws of the user's code from the process's own generators: seed and restore them."""

import random
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_open_blocks: list[Callable[[], None]] = []
"""For each block of `keep_generators` that is open, what restores the states."""


@contextmanager
def keep_generators() -> Generator[None]:
    """Restore the states of `random`, numpy and torch, whose draws are the training's.

    Blocks of several threads may overlap: the end of the last restores what the first one found.
    """
    with _lock:
        _open_blocks.append(_open_blocks[0] if _open_blocks else _keep_states())
    try:
        yield
    finally:
        with _lock:
            restore = _open_blocks.pop()
            if not _open_blocks:
                restore()


def _keep_states() -> Callable[[], None]:
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    torch = sys.modules.get("torch")
    numpy_state = None if numpy is None else numpy.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()

    def restore() -> None:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)

    return restore


def with_seed(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """Return a function that sets the seeds of all generators before each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        random.seed(seed)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(seed % 2**32)
        if (torch := sys.modules.get("torch")) is not None:
            torch.random.default_generator.manual_seed(seed)
        return function(*args, **kwargs)

    return call
