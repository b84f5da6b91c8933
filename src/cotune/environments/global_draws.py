"""Random draws of the user's code from the process's own generators: seed and restore them."""

import random
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def keep_generators() -> Generator[None]:
    """Restore the states of `random`, numpy and torch, whose draws are the training's."""
    numpy = sys.modules.get("numpy")
    torch = sys.modules.get("torch")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    torch_state = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


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
