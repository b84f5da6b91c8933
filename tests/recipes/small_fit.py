"""Fits a small policy of `arithmetic`: python -m tests.recipes.small_fit FOLDER.

Each phase is fitted in a process of its own, as the recipe does it, but one that is forked and so
need not import torch.
"""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.multiprocessing.spawn import start_processes

from recipes import fitting
from recipes.arithmetic.pretrain import Phase, Recipe, pretrain

RECIPE = Recipe(
    vocabulary=384,
    tokenizer_demonstrations=400,
    hidden_size=32,
    layers=1,
    heads=2,
    kv_heads=1,
    phases=(Phase(25, 1.0, 0.85, (0.5, 0.5)), Phase(10, 0.5, 0.45, (0.0, 0.0))),
    batch=8,
    micro_batches=2,
    warm_up=5,
)


def forked(work: Callable[..., None], arguments: tuple[Any, ...], nprocs: int) -> None:
    """Run what `spawn` would run, after pickling it as that does."""
    given = pickle.loads(pickle.dumps((work, arguments)))  # noqa: S301
    start_processes(*given, nprocs, start_method="fork")


if __name__ == "__main__":
    fitting.spawn = forked
    pretrain(Path(sys.argv[1]), RECIPE, workers=1)
