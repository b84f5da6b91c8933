"""Random draws of the user's code from the process's own generators: seed and restore them."""

import inspect
import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def generators_kept() -> Generator[None]:
    """Restore the states of `random`, numpy and torch, whose draws are the training's."""
    kept = _states()
    try:
        yield
    finally:
        random.setstate(kept[0])
        if kept[1] is not None:
            sys.modules["numpy"].random.set_state(kept[1])
        if kept[2] is not None:
            sys.modules["torch"].set_rng_state(kept[2])


def seeded(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """Return a function, sync or async, that sets the seeds of all generators before each call."""
    if inspect.iscoroutinefunction(function):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            _seed(seed)
            return await function(*args, **kwargs)

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        _seed(seed)
        return function(*args, **kwargs)

    return called


def _states() -> tuple[Any, Any, Any]:
    """Return the states of `random`, numpy and torch; None for a library that is not loaded."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
        None if torch is None else torch.get_rng_state(),
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.random.default_generator.manual_seed(seed)
