"""Where a policy lies ("bundled:NAME", a folder, a name on the Hugging Face hub) and its files there."""

import json
import logging
from importlib import resources
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError

_LOG = logging.getLogger("cotune")
_MAKE = {"geo": "make policy", "arithmetic": "make policy-arithmetic"}
BUNDLED = tuple(_MAKE)
_MEND = "name a folder that holds a model, or a model of the hub that is cached or within reach"


def policy_path(path: str) -> str:
    """Resolves "bundled:NAME" to its folder; any other path or name is returned as it is."""
    if not path.startswith("bundled:"):
        if path.startswith(("/", ".", "~")) and not Path(path).is_dir():
            raise ConfigError(
                f"policy.path is {path!r}, and there is no such folder; expected one, a Hugging "
                f"Face name, or {' or '.join(f'bundled:{known}' for known in BUNDLED)}"
            )
        return path
    name = path.removeprefix("bundled:")
    if name not in BUNDLED:
        raise ConfigError(
            f"policy.path is {path!r}; bundled policies are {', '.join(BUNDLED)}, and any Hugging "
            "Face name or folder goes without 'bundled:'"
        )
    folder = Path(str(resources.files("cotune.worlds"))) / "weights" / name
    if not (folder / "model.safetensors").is_file():
        raise ConfigError(
            f"policy.path: {folder} holds no model.safetensors; build it: {_MAKE[name]}"
        )
    return str(folder)


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


def only_local(path: str | Path, of: str = "", *, weights: bool = True) -> bool:
    """Whether a policy's files are to be taken from this machine alone.

    A folder is, and what is whole in the hub's cache while the hub is out of reach or switched off
    (HF_HUB_OFFLINE). The hub is asked once, for HF_HUB_ETAG_TIMEOUT seconds at most (10 by
    default); its own clients would try each file of a model again for half a minute.

    Args:
        path: the folder or name.
        of: what it is of, for what is said of it.
        weights: whether they are wanted, besides configuration and tokenizer.

    Raises:
        ConfigError: the hub knows no such model, or is needed and does not answer.
    """
    name = str(path)
    if Path(path).is_dir():
        return True
    shown = f"{name!r}{of}"
    reason = _unreachable(name, shown)
    if reason is None:
        return False
    cached = cached_folder(name)
    lacks = ["every part"] if cached is None else missing_parts(cached)
    if not weights:
        lacks = [part for part in lacks if part in ("every part", "config.json", "tokenizer")]
    if lacks:
        raise ConfigError(
            f"policy.path: cannot load {shown}: it is no folder here, the hub's cache lacks "
            f"{', '.join(lacks)} of it, and {reason}; {_MEND}"
        )
    _LOG.warning("%s: %s is taken from the cache", reason, name)
    return True


def _unreachable(name: str, shown: str) -> str | None:
    """Why the hub does not give a model; None where it does.

    Raises:
        ConfigError: no model can be called so.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        HfApi().model_info(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HFValidationError:
        raise ConfigError(
            f"policy.path: cannot load {shown}: it is no folder here and no model's name; {_MEND}"
        ) from None
    except RepositoryNotFoundError:
        return (
            f"{constants.ENDPOINT} has no such model, or shows it to its owners alone (correct the "
            "name, or hf auth login)"
        )
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except HfHubHTTPError:
        return None  # it answers; whoever loads the files tries again, and says why in vain
    # What a connection fails with is another class in each generation of huggingface_hub.
    except Exception as error:  # noqa: BLE001
        said = " ".join(str(error).split())[:80]
        return f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}: {said})"
    return None
