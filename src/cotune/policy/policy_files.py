"""The `policy` section of a run file, and the files of a policy: "bundled:NAME", a folder, a name on the hub."""

from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from cotune.environments.registry import kind_of, kinds
from cotune.errors import ConfigError
from cotune.utils.text import one_line
from cotune.utils.validation import Model


class LoraOptions(Model):
    """Low-rank adapters (arXiv 2106.09685): what is trained in place of the weights. Needs peft."""

    rank: int = Field(default=16, ge=1)
    """The rank of the two matrices that are added to a layer, r."""
    alpha: int = Field(default=32, ge=1)
    """Their product is scaled by alpha / rank."""
    dropout: float = Field(default=0, ge=0, lt=1)
    """Dropout on an adapter's input in training; rollouts are sampled without it."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Layers that get an adapter, by name; all-linear: all but the head."""


class PolicyConfig(Model):
    """The model that is trained."""

    path: str = "bundled:ladder"
    """A Hugging Face name or folder; "bundled:ladder" is the small policy of the world ladder."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of the loaded weights; "auto" is the checkpoint's."""
    chat_template: str | None = None
    """A file of a Jinja chat template, or "plain" for a base model without one (the messages' texts,
    one after the other); null is the tokenizer's own."""
    template_args: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the chat template: {enable_thinking: false} for Qwen3, say."""
    lora: LoraOptions | None = None
    """Trains adapters on frozen weights; null trains the weights."""


_BUNDLED = "bundled:"
ADAPTER_CONFIG = "adapter_config.json"
"""The file of an adapter's folder that names its base."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""The file of an adapter's folder that holds its weights."""


def policy_path(path: str) -> str:
    """Return the folder of "bundled:NAME"; any other path or name unchanged. ConfigError if it is invalid."""
    if "://" in path:
        raise ConfigError(
            "policy.path is an address (not shown, as it may hold a password); expected a folder, or a "
            "model's name on the hub"
        )
    if path.startswith(_BUNDLED):
        kind = path.removeprefix(_BUNDLED)
        folder = kind_of(kind).policy if kind in kinds() else None
        if folder is None:
            raise ConfigError(
                f"policy.path is {path!r}; cotune's own bundled policy is bundled:ladder, those of other worlds "
                "come with their package, and any Hugging Face name or folder is given without 'bundled:'"
            )
        return str(folder)
    if path.startswith(("/", ".", "~")) and not Path(path).is_dir():
        raise ConfigError(
            f"policy.path is {path!r}, and there is no such folder; expected one, a Hugging Face "
            "name, or bundled:ladder"
        )
    return path


def is_local(path: str) -> bool:
    """Return whether `policy.path` names something on this machine, as far as its form says."""
    return path.startswith(_BUNDLED) or Path(path).exists()


def is_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter instead of a model's weights."""
    return (Path(folder) / ADAPTER_CONFIG).is_file()


def missing_parts(folder: Path) -> list[str]:
    """Return the parts that a Hugging Face folder of a model or adapter lacks."""
    parts = {
        "config.json": ["config.json", ADAPTER_CONFIG],
        "weights": ["*.safetensors", "pytorch_model*.bin"],
        "tokenizer": ["tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"],
    }
    return [name for name, globs in parts.items() if not any(any(folder.glob(g)) for g in globs)]


def damaged_weights(folder: Path) -> str:
    """Return the first safetensors file of a folder that is not whole, with the reason; "" if all are."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="np"):  # reads the header, and compares it with the size
                pass
        except (SafetensorError, OSError) as error:
            return f"{file.name} is damaged ({one_line(str(error))})"
    return ""


def check_whole(folder: Path) -> None:
    """Raise ConfigError if the best policy of a run lacks a part, or its weights are cut off."""
    lacks = missing_parts(folder)
    problem = f"lacks {', '.join(lacks)}" if lacks else damaged_weights(folder)
    if problem:
        raise ConfigError(
            f"{folder}: {problem}; restore the file, or remove {folder} and resume the run without what it had kept"
        )


def cached_folder(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config_file = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(config_file).parent if isinstance(config_file, str) else None


def weights_size(folder: Path) -> int:
    """Return the size of a folder's weights in bytes: of safetensors if it has any."""
    files = list(folder.glob("*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in files)


def only_local(path: str | Path) -> bool:
    """Return whether to load a policy from this machine only: a folder, or the hub's cache if the hub is out of reach.

    Each call asks the hub once, for at most HF_HUB_ETAG_TIMEOUT seconds (10 by default); its own clients would retry
    each file of a model for half a minute.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if Path(path).is_dir():
        return True
    try:
        HfApi().model_info(str(path), timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except RepositoryNotFoundError:  # private, and there is no token; or deleted
        return cached_folder(str(path)) is not None
    except HfHubHTTPError:
        return False  # loading the files says what is wrong
    # Connection errors have different classes in each generation of huggingface_hub.
    except Exception:  # noqa: BLE001
        return True
    return False
