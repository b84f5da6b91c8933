"""Random draws of the user's code from the process's own generators: seed, notice and restore them."""

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


def drawn_since(before: str) -> bool:
    """Return whether anything was drawn, or a seed set, since `fingerprint` gave this text."""
    return fingerprint() != before


def fingerprint() -> str:
    """Return a text that changes with every draw."""
    own, numpy, torch = _states()
    parts = [hash(own)]
    if numpy is not None:
        parts += [hash(numpy[1].tobytes()), numpy[2], numpy[3]]
    if torch is not None:
        parts.append(hash(torch.numpy().tobytes()))
    return repr(parts)


def seeded(
    function: Callable[..., Any], seed: int, drawn: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Return a function that sets the seeds of all generators before each call.

    Args:
        drawn: called after a call that drew.
    """

    @contextmanager
    def watched() -> Generator[None]:
        _seed(seed)
        before = fingerprint()
        try:
            yield
        finally:
            if drawn is not None and drawn_since(before):
                drawn()

    if inspect.iscoroutinefunction(function):

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with watched():
                return await function(*args, **kwargs)

        return awaited

    def called(*args: Any, **kwargs: Any) -> Any:
        with watched():
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
