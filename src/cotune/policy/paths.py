"""Where a policy lies: "bundled:NAME", a folder, or a name on the Hugging Face hub."""

from importlib import resources
from pathlib import Path

from cotune.errors import ConfigError

_MAKE = {"geo": "make policy", "arithmetic": "make policy-arithmetic"}
BUNDLED = tuple(_MAKE)


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
