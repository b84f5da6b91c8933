"""What a policy's folder holds, without loading it."""

import json
from pathlib import Path
from typing import Any


def missing_parts(folder: Path) -> list[str]:
    """Which parts of a Hugging Face folder, of a model or an adapter, are not there."""
    parts = {
        "config.json": ["config.json", "adapter_config.json"],
        "weights": ["*.safetensors", "pytorch_model*.bin"],
        "tokenizer": ["tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"],
    }
    lacks = [name for name, globs in parts.items() if not any(any(folder.glob(g)) for g in globs)]
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
        shards = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        shards = []
    return lacks + [name for name in shards if not (folder / name).is_file()]


def cached_folder(name: str) -> Path | None:
    """The folder of a model in the hub's cache; None where it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer of a folder has a chat template."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        known = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(known, dict) and bool(known.get("chat_template"))


def weights_size(folder: Path) -> int:
    """Bytes of the weights of a folder: safetensors if it has any."""
    files = list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in files)


def read_best(folder: Path) -> dict[str, Any]:
    """best.json of a run's best policy; `hint` is "" in one from before hints were kept.

    Raises:
        OSError, ValueError: there is none that can be read.
    """
    return {"hint": "", **json.loads((folder / "best.json").read_text(encoding="utf-8"))}
