"""Checkpoints: a trainer folder paired with cotune's state of the same step.

cotune's half is written first, atomically; the trainer's first process writes `trainer_state.json`
last. A pair is therefore complete if both that file and the state can be read, and a kill at any
moment leaves the previous pair intact. With several processes, the others may still be writing at
that point, so their files are checked as well: each process's random state and, under DeepSpeed,
its part of the optimizer. FSDP2 writes `.metadata` after all of its shards.

Last of all comes the manifest with the size of every file, once all processes have written. A pair
from an earlier version, or one that a kill cut off from its manifest, is complete without it.
"""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotune.protocols import State
from cotune.run.json_files import write_json_atomic
from cotune.run.manifest import MANIFEST, write_manifest


def state_path(folder: Path, step: int) -> Path:
    """Return the path of cotune's half of the checkpoint of an optimizer step."""
    return folder / f"cotune-state-{step}.json"


def save_state(folder: Path, step: int, state: State) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(state_path(folder, step), state)


def load_state(folder: Path, step: int) -> State | None:
    """Return the state of a step, or None if it cannot be read."""
    return _read_json(state_path(folder, step))


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the trainer's folders of the complete pairs, newest first."""
    newest_first = sorted(_trainer_folders(folder), reverse=True)
    return [path for step, path in newest_first if _is_complete(folder, step, path)]


def complete_checkpoint(folder: Path, step: int) -> None:
    """Write the manifest of a pair whose files are all written."""
    state = state_path(folder, step)
    write_manifest(folder / f"checkpoint-{step}", (state,) if state.exists() else ())


def _is_complete(folder: Path, step: int, path: Path) -> bool:
    if (path / MANIFEST).exists():
        return True
    state = load_state(folder, step)
    return bool(state) and _is_whole(path, state or {})


def drop_torn(folder: Path) -> None:
    """Delete incomplete trainer folders, which the trainer's rotation would count.

    Deletes only folders of cotune's own saves: those that have a state file beside them.
    """
    for step, path in _trainer_folders(folder):
        if state_path(folder, step).exists() and not (
            (path / MANIFEST).exists() or _is_whole(path, load_state(folder, step) or {})
        ):
            shutil.rmtree(path)


def drop_orphans(folder: Path, keep_from: int) -> None:
    """Delete states older than `keep_from` whose trainer folder was rotated away."""
    for path in folder.glob("cotune-state-*.json"):
        step = path.stem.removeprefix("cotune-state-")
        if (
            step.isdigit()
            and int(step) < keep_from
            and not (folder / f"checkpoint-{step}").exists()
        ):
            path.unlink(missing_ok=True)


def _trainer_folders(folder: Path) -> list[tuple[int, Path]]:
    numbered = [
        (path.name.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*")
    ]
    return [(int(step), path) for step, path in numbered if step.isdigit()]


def _is_whole(path: Path, state: State) -> bool:
    if _read_json(path / "trainer_state.json") is None:
        return False
    # torch.save writes a zip archive, whose directory is at its end.
    return all(map(zipfile.is_zipfile, _of_other_processes(path, state))) and all(
        (shards / ".metadata").is_file() for shards in _shard_folders(path)
    )


def _of_other_processes(path: Path, state: State) -> Iterator[Path]:
    """Yield the files written by the processes other than the first."""
    if not (path / "rng_state_0.pth").is_file():
        return  # one process, or only the weights were saved
    latest = path / "latest"
    step = latest.read_text(encoding="utf-8").strip() if latest.is_file() else None
    for rank in range(1, int(state.get("processes", 1))):
        yield path / f"rng_state_{rank}.pth"
        if step is not None:
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            yield next((path / step).glob(f"*{name}"), path / step / name)


def _shard_folders(path: Path) -> list[Path]:
    names = ("pytorch_model_fsdp_0", "optimizer_0")
    return [path / name for name in names if (path / name).is_dir()]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
