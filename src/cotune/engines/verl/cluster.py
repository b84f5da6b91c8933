"""Runs on an existing Ray cluster, named by RAY_ADDRESS (as in a submitted job) or by the run file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError

_COPY = "_ray_pkg_"


def on_cluster(ray_init: Mapping[str, Any]) -> bool:
    """Return whether a run joins an existing cluster instead of starting one.

    Args:
        ray_init: `ray_kwargs.ray_init` of veRL's configuration.
    """
    address = ray_init.get("address") or os.environ.get("RAY_ADDRESS")
    return bool(address) and address != "local"  # for which Ray starts a new cluster


def check_copy(folder: Path) -> None:
    """Raise ConfigError for a run folder inside the copy that Ray makes of a job's --working-dir.

    The copy is in Ray's session folder on one node, and is deleted with it.
    """
    if any(part.startswith(_COPY) for part in folder.absolute().parts):
        raise ConfigError(
            f"output: {folder} lies in the copy that Ray made of the job's --working-dir, and would be "
            "lost with it; expected an absolute path, where all nodes see it"
        )
