"""Whether the Hugging Face hub has to be asked for a policy, and whether it answers."""

import logging
from pathlib import Path

from cotune.errors import ConfigError
from cotune.policy.folder import cached_folder, missing_parts

_LOG = logging.getLogger("cotune")
_MEND = "name a folder that holds a model, or a model of the hub that is cached or within reach"


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
