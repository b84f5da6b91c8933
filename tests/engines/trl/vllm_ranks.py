"""What each of two ranks does in test_vllm_ranks; writes what it saw to FOLDER/rank{N}.json.

torchrun --nproc_per_node 2 -m tests.engines.trl.vllm_ranks FOLDER
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cotune.types import Action, Response
from tests.engines.trl.fake_vllm import Engine, install
from tests.engines.trl.setup import Run, start
from tests.engines.trl.two_ranks import SIZES, fingerprint, seen
from tests.policy.tiny import Letters, tiny_tokenizer

MODES: dict[str, dict[str, Any]] = {
    "server": {"vllm_mode": "server"},
    "colocate": {"vllm_mode": "colocate"},
    "shared": {"vllm_mode": "colocate", "vllm_tensor_parallel_size": 2},
}


class BoomOnRankOne(Letters):
    """Fails at rank 1's first turn, while rank 0 goes on to its last."""

    def respond(self, actions: Sequence[Action]) -> list[Response]:
        if dist.get_rank() == 1:
            raise ValueError("boom")
        return super().respond(actions)


def evaluations(run: Run, engine: Engine) -> dict[str, Any]:
    """Rollouts of one task, which leave rank 1 without any, and of seven; the latter also in parts."""
    found: list[list[dict[str, Any]]] = []
    calls: list[list[int]] = []
    tasks = [task for split in ("train", "test") for task in Letters().tasks(split)]
    for count, rows in ((1, 512), (7, 512), (7, 2)):
        coordinator, before = run.joint.coordinator, len(engine.calls)
        coordinator.settings = replace(coordinator.settings, rows_per_call=rows)
        found.append([seen(t) for t in coordinator.evaluate(tasks[:count])])
        calls.append([rows for _, rows in engine.calls[before:]])
    return {"evaluations": found, "calls_of_evaluations": calls}


def train(folder: Path, engine: Engine, **changes: Any) -> dict[str, Any]:
    """Trains three batches and evaluates what came of it."""
    run = start(folder, use_vllm=True, **SIZES, **changes)
    run.trainer.train()
    return {
        "batches": [[seen(t) for t in batch] for batch in run.trajectories],
        "weights": fingerprint(run),
        **evaluations(run, engine),
        "calls": [(params.max_tokens, rows) for params, rows in engine.calls],
        "syncs": engine.syncs,
    }


def fail(folder: Path, rank: int, engine: Engine) -> None:
    """The server fails in two ways, then an environment on one rank; both ranks hear of all."""
    changes = {**SIZES, "use_vllm": True, "vllm_mode": "server", "output_dir": str(folder / "out")}
    given: dict[str, Any] = {
        "server": {},
        "weights": {},
        "environment": {"environment": BoomOnRankOne()},
    }
    for name, parts in given.items():
        run = start(folder / f"{name}{rank}", **parts, **changes)
        engine.fails_at = len(engine.calls) + 1 if name == "server" else -1
        try:
            if name == "weights":
                run.folder.begin_attempt(None)
                engine.refuses_weights = True
                run.joint.coordinator.evaluate(Letters().tasks("train"))
            run.trainer.train()
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            (folder / f"{name}{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        engine.refuses_weights = False


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for mode, changes in MODES.items():
        own, out = folder / mode / f"rank{rank}", str(folder / mode / "out")
        found[mode] = train(own, install(tiny_tokenizer()), output_dir=out, **changes)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    fail(folder, rank, install(tiny_tokenizer()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
