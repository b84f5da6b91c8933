"""Convert a GGUF file to a Hugging Face folder, once, in the user's cache.

Weights cannot be trained in GGUF's quantised blocks, so they are unpacked by transformers, and the
tokenizer and the chat template are taken from the file. The folder is named after the file and its
SHA-256, and is checked against its manifest whenever a process first uses it.
"""

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from cotune.errors import ConfigError
from cotune.policy.gguf_file import GgufHeader, need_gguf, read_header
from cotune.run.json_files import write_atomic
from cotune.run.locks import locked
from cotune.run.manifest import MANIFEST, damaged_file, write_manifest
from cotune.utils.files import sha256_of
from cotune.utils.progress import begin
from cotune.utils.text import one_line

_LOG = logging.getLogger("cotune")
_LINK = "model.gguf"
_PATIENCE = 1800.0  # seconds that another process may take to convert the same file
_TEXTS = ("Hello, world! 12 + 30 = 42.", "two\nlines,\n\n  and spaces", "naïve – 東京 🙂")


def cache_folder() -> Path:
    """Return the folder of converted policies: in XDG_CACHE_HOME, or else in ~/.cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "cotune" / "gguf"


def converted_folder(path: str, file: Path) -> Path:
    """Return the Hugging Face folder of a GGUF file; convert the file first if needed.

    Args:
        path: `policy.path`, for messages.
        file: the file.

    Raises:
        ConfigError: the file cannot be converted, or the cache cannot be written.
    """
    folder = _folder_of(file)
    if not _is_whole(folder):
        _convert_once(path, file, folder)
    return folder


def known_folder(file: Path) -> Path | None:
    """Return the Hugging Face folder of a GGUF file; None if it was not converted yet."""
    folder = _folder_of(file)
    return folder if _is_whole(folder) else None


@cache
def gguf_config(path: str, file: Path) -> Any:
    """Return a GGUF file's configuration as transformers reads it from the header.

    Raises:
        ConfigError: transformers does not know the architecture, or the file is broken.
    """
    need_gguf(path)
    from transformers import AutoConfig

    header = read_header(path, file)
    try:
        with redirect_stderr(StringIO()):
            return AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    # transformers raises many kinds of errors for fields that are missing or have odd values.
    except Exception as error:
        raise _unreadable(path, file, header.architecture, error) from error


def saved_dtype(path: str, file: Path) -> str:
    """Return the type that a GGUF file's weights are saved in once they are converted."""
    return _dtype(read_header(path, file))


def _dtype(header: GgufHeader) -> str:
    """Return float32 for a file of float32 weights, else bfloat16, which is enough for quantised ones."""
    return "float32" if header.weights_type == "F32" else "bfloat16"


def _folder_of(file: Path) -> Path:
    state = file.stat()
    return cache_folder() / f"{file.stem}-{_sha256(file, state.st_size, state.st_mtime_ns)[:16]}"


@cache
def _sha256(file: Path, size: int, changed: int) -> str:
    """Hash a file once in a process, as long as its size and time stay the same."""
    return sha256_of(file)


def _is_whole(folder: Path) -> bool:
    """Return whether a converted folder is what was written; checked once for each state of its files."""
    if not folder.is_dir():
        return False
    states = ((file.name, file.stat()) for file in folder.iterdir())
    stamps = sorted((name, state.st_size, state.st_mtime_ns) for name, state in states)
    return _matches(folder, tuple(stamps))


@cache
def _matches(folder: Path, stamps: Sequence[object]) -> bool:
    try:
        return (folder / MANIFEST).is_file() and damaged_file(folder) is None
    except OSError:
        return False


def _convert_once(path: str, file: Path, folder: Path) -> None:
    """Convert a file in a temporary folder and move it to its place; one process at a time."""
    need_gguf(path)
    busy = f"policy.path: another process is still converting {file.name}; wait for it"
    try:
        with locked(folder.with_name(f".{folder.name}.lock"), busy, _PATIENCE):
            if _is_whole(folder):
                return
            if folder.exists():
                _LOG.warning("%s: is damaged; %s is converted again", folder, file.name)
            staged = folder.with_name(f".{folder.name}.new")
            shutil.rmtree(staged, ignore_errors=True)
            try:
                _convert(path, file, staged)
                shutil.rmtree(folder, ignore_errors=True)
                staged.rename(folder)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"policy.path is {path!r}, and {folder.parent} cannot be written ({error.strerror or error}); "
            "make room there, or set XDG_CACHE_HOME to another folder"
        ) from error


def _convert(path: str, file: Path, folder: Path) -> None:
    begin(f"converting {file.name}, once")
    header = read_header(path, file)
    folder.mkdir(parents=True)
    # Read through a link in an empty folder, so that no file beside it is taken into account.
    link = folder / _LINK
    link.symlink_to(file.resolve())
    try:
        # Progress bars of transformers, which has no switch for all of them.
        with redirect_stderr(StringIO()):
            tokenizer, model = _loaded(folder, header)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except OSError:
        raise
    # transformers and gguf raise many kinds of errors for types and fields that they do not know.
    except Exception as error:
        raise _unreadable(path, file, header.architecture, error) from error
    link.unlink()
    _check_tokenizer(path, file, header, folder)
    license = f"---\nlicense: {header.license}\n---\n" if header.license.isascii() else ""
    text = f"Converted by cotune from {file.name}, SHA-256 {_sha256_of(file)}.\n"
    write_atomic(folder / "README.md", (license if header.license else "") + text)
    write_manifest(folder)


def _sha256_of(file: Path) -> str:
    state = file.stat()
    return _sha256(file, state.st_size, state.st_mtime_ns)


def _loaded(folder: Path, header: GgufHeader) -> tuple[Any, Any]:
    """Load tokenizer and model; the model is a plain one that can be saved and trained."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": _LINK, "local_files_only": True}
    dtype = getattr(torch, _dtype(header))
    tokenizer = AutoTokenizer.from_pretrained(folder, **source)
    config: Any = AutoConfig.from_pretrained(folder, **source)
    if options := getattr(transformers, "GgufConfig", None):  # newer ones may keep weights packed
        source["quantization_config"] = options(dequantize=True)
    found: Any = AutoModelForCausalLM.from_pretrained(
        folder, **source, dtype=dtype, output_loading_info=True
    )
    read, info = found
    if missing := sorted(info["missing_keys"]):
        raise ValueError(f"it holds no {missing[0]}")  # which would be left random
    # A model that was read from GGUF counts as quantised, and cannot be saved or trained.
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    return tokenizer, model


def _check_tokenizer(path: str, file: Path, header: GgufHeader, folder: Path) -> None:
    """Check the saved tokenizer and chat template against the file.

    Raises:
        ConfigError: a token, a text or the template is not what the file says.
    """
    from jinja2.exceptions import TemplateError
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    wrong = ""
    if tokenizer.convert_ids_to_tokens(list(range(len(header.tokens)))) != list(header.tokens):
        wrong = "its tokens differ"
    elif header.eos_id is None or tokenizer.eos_token_id != header.eos_id:
        wrong = f"its EOS is {tokenizer.eos_token_id}, not {header.eos_id}"
    control = [header.tokens[i] for i in header.control_ids]
    spelt = [token for token in control if token in header.chat_template]
    for token in spelt:
        if tokenizer.encode(token, add_special_tokens=False) != [header.tokens.index(token)]:
            wrong = wrong or f"{token} is cut into pieces"
    for text in (*_TEXTS, "".join(f"{token}a b" for token in spelt)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        read = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        # Tokenizers that do not work on bytes may add a space at the start or after a control token.
        same = read == text if header.byte_level else _spaceless(read) == _spaceless(text)
        if not same:
            wrong = wrong or f"{text!r} is not decoded as it was encoded"
    if header.chat_template and not wrong:
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "Hello"}], add_generation_prompt=True
            )
        except (TemplateError, TypeError) as error:
            wrong = f"its chat template does not render ({one_line(str(error))[:80]})"
    if wrong:
        raise ConfigError(
            f"policy.path is {path!r}, but the tokenizer in {file.name} is not read faithfully: {wrong}; name "
            "the model that the file was made from"
        )


def _spaceless(text: str) -> str:
    return text.replace(" ", "")


def _unreadable(path: str, file: Path, architecture: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"policy.path is {path!r}, and transformers cannot read {file.name}, of the architecture "
        f"{architecture} ({one_line(str(error))[:160]}); name the model that it was made from"
    )
