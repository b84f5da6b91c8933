"""What a policy was trained from, without naming a place on the machine that trained it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from cotune.errors import ConfigError
from cotune.policy.paths import policy_path

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_FRONT_MATTER = re.compile(r"\A---\r?\n(.*?)\r?\n---\s*$", re.DOTALL | re.MULTILINE)
_SECONDS = 5.0  # for asking the hub for a card


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A base model.

    Attributes:
        name: a hub id, "bundled:geo", or the last part of a local folder's path.
        hub_id: the same where it is one; "" else.
        license: as its own card says; "" where none says.
        license_name: what a card says more about a license "other"; "" if nothing.
    """

    name: str
    hub_id: str = ""
    license: str = ""
    license_name: str = ""


def base_model(path: str) -> BaseModel:
    """The base model of a run file's `policy.path`.

    The license is read from its card: in its folder, in the hub's cache, else from the hub itself;
    a hub that cannot be asked leaves it unknown.
    """
    local = path.startswith("bundled:") or Path(path).is_dir()
    if not local and not is_hub_id(path):
        # A folder that is not there any more.
        return BaseModel(name=Path(path).name)
    name = Path(path).resolve().name if local and not path.startswith("bundled:") else path
    card = _local_card(path) if local else _hub_card(path)
    said = _front_matter(card)
    license, more = _word(said.get("license")), said.get("license_name")
    return BaseModel(
        name=name,
        hub_id="" if local else path,
        license=license,
        license_name=_word(more) if license == "other" else "",
    )


def is_hub_id(name: str) -> bool:
    """Whether a name can be that of a repository of the hub, and is no local path."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def _local_card(path: str) -> str:
    try:
        return (Path(policy_path(path)) / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ConfigError):
        return ""


def _hub_card(name: str) -> str:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "README.md")
        if not isinstance(cached, str):
            cached = hf_hub_download(name, "README.md", etag_timeout=_SECONDS)
        return Path(cached).read_text(encoding="utf-8")
    except (OSError, ValueError):  # of the hub's errors, all that a download raises
        return ""


def _front_matter(card: str) -> dict[str, Any]:
    found = _FRONT_MATTER.match(card)
    if found is None:
        return {}
    try:
        said = yaml.safe_load(found[1])
    except yaml.YAMLError:
        return {}
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _word(value: object) -> str:
    """A license's identifier; "" for anything else that a card may hold."""
    return value if isinstance(value, str) and _LICENSE.fullmatch(value) else ""
