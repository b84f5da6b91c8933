"""A function of a test on two gloo ranks, each a process of its own.

torchrun --nproc_per_node 2 -m tests.engines.trl.ranks MODULE FUNCTION FOLDER ARGUMENT …
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.forked import run_ranks


def on_two_ranks(work: Callable[..., Any], folder: Path, *arguments: str) -> list[Any]:
    """What a function returns on each rank, as JSON; it is given the folder, the rank and the arguments."""
    function = (work.__module__, work.__name__)
    run_ranks("tests.engines.trl.ranks", *function, folder, *arguments)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


if __name__ == "__main__":
    module, name, output, *arguments = sys.argv[1:]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    result = getattr(importlib.import_module(module), name)(Path(output), rank, *arguments)
    (Path(output) / f"rank{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
