"""The bundled policies, one per bundled world: weights, tokenizer, recipe and card."""

from pathlib import Path

from cotune.contracts import ConfigError

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
    folder = Path(__file__).parent / name / "weights"
    if not (folder / "model.safetensors").is_file():
        raise ConfigError(
            f"policy.path: {folder} holds no model.safetensors; build it: {_MAKE[name]}"
        )
    return str(folder)
