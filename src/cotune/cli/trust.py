"""Refuse unasked what a run folder names: code to import, a server to send a key to. It may be somebody else's."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cotune.config.overrides import with_overrides
from cotune.errors import ConfigError
from cotune.run.run_dir import RunDir
from cotune.utils.importing import is_file, split_reference
from cotune.utils.text import flat, hide_secrets, printable, texts_in


def check_trusted(folder: Path, trust: bool) -> None:
    """Check the Python files that a run folder's run.yaml names, before any is imported.

    Files below the current folder are trusted, because the user chose to work there; files and modules
    inside the run folder are not, because cotune writes no code there.

    Raises ConfigError: not a run folder; or other code is named, and the user has not said that it may run.
    """
    project = Path.cwd().resolve()
    references = list(code_references(RunDir.open(folder).read_config()))
    files = [Path(reference).resolve() for reference in references if is_file(reference)]
    modules = [file.resolve() for name in references for file in _module_files(name)]
    strange = [file for file in files if not file.is_relative_to(project)]
    strange += [file for file in (*files, *modules) if file.is_relative_to(folder.resolve())]
    if trust or not strange:
        return
    paths = printable(", ".join(dict.fromkeys(map(str, strange))))
    raise ConfigError(
        f"{folder}/run.yaml runs code from the run folder or from outside the current folder: {paths}; look at it, "
        "then add --trust"
    )


def check_server(folder: Path, trust: bool, assignments: Sequence[str]) -> None:
    """Check the Tinker server that evaluating a run would send the user's key to.

    One that `assignments` name is the user's choice. Raises ConfigError: not a run folder; or run.yaml names a server
    on another machine that is neither TINKER_BASE_URL's nor trusted.
    """
    recorded = RunDir.open(folder).read_config()
    url = _tinker_server(with_overrides(recorded, assignments))
    is_recorded = bool(url) and url == _tinker_server(recorded)
    is_local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    trusted = trust or is_local or url == os.environ.get("TINKER_BASE_URL")
    if is_recorded and not trusted:
        raise ConfigError(
            f"{folder}/run.yaml names the server {printable(hide_secrets(url))}, which would get your key: if you "
            "trust it, add --trust, or set TINKER_BASE_URL to it"
        )


def _tinker_server(run_file: Mapping[str, Any]) -> str:
    """Return the address of the Tinker server that a run file names; "" if it names none."""
    training = run_file.get("training") or {}
    arguments = training.get("engine_args") or {}
    return str(arguments.get("base_url") or "") if training.get("engine") == "tinker" else ""


def code_references(run_file: Mapping[str, object]) -> Iterator[str]:
    """Yield the file or module of every text that may name an object; skip the instruction, which is prose.

    A verifiers environment, and modules that veRL imports (`external_lib`), are named without an object.
    """
    for text in texts_in([value for name, value in run_file.items() if name != "instruction"]):
        module, name = split_reference(text)
        if module and name:
            yield module
    environment = run_file.get("environment")
    training = run_file.get("training")
    if isinstance(environment, Mapping) and environment.get("kind") == "verifiers":
        yield str(environment.get("environment")).replace("-", "_")
    if isinstance(training, Mapping):
        values = list(flat({"": training.get("engine_args")}).values())
        yield from (text.removeprefix("pkg://") for text in texts_in(values))


def _module_files(module: str) -> Iterator[Path]:
    """Yield the files and folders below the current one that importing a module may run."""
    parts = module.split(".")
    for depth, name in enumerate(parts):
        folder = Path(*parts[:depth])
        if os.path.isdir(folder):
            yield from (p for p in folder.iterdir() if p.name.partition(".")[0] == name)
