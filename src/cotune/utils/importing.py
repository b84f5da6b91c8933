"""Objects that a run file names: `package.module:name`, or `file.py:name`."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from cotune.errors import ConfigError

ENVIRONMENTS = "cotune.environments"
"""The entry-point group in which a package registers kinds of environments."""


def import_object(reference: str, field: str) -> Any:
    """The object of `package.module:name` or `file.py:name`.

    A package is looked for where Python looks and in the current folder, a file from there.

    Raises:
        ConfigError: names the field and what could not be found, or what the import raised.
    """
    where, colon, name = reference.partition(":")
    if not (where and colon and name):
        raise ConfigError(
            f"{field}: {reference!r} names no object; expected package.module:name or file.py:name"
        )
    module = _file(where, field) if where.endswith(".py") else _module(where, field)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n in vars(found) if not n.startswith("_")] if part == name else []
            near = difflib.get_close_matches(part, known, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"{field}: {where} has no {name}{meant}; correct the name")
        found = getattr(found, part)
    return found


def registered(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register in an entry-point group, by name."""
    return {entry.name: entry for entry in entry_points(group=group)}


def load_registered(group: str, name: str, field: str) -> Any:
    """Return what a package registered under a name.

    Raises:
        ConfigError: it cannot be imported; names the field of the run file.
    """
    try:
        return registered(group)[name].load()
    # Whatever a package raises while it is imported, the run file names it.
    except Exception as error:
        raise ConfigError(
            f"{field}: {name!r} cannot be loaded ({_said(error)}); fix or reinstall its package"
        ) from error


def import_from(folders: Iterable[Path]) -> None:
    """Lets modules be imported from some folders, after all others: a script's own, say."""
    for folder in folders:
        path = str(folder.resolve())
        if path not in sys.path:
            sys.path.append(path)


def _module(name: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{field}: no module {error.name!r}; install its package, or run cotune from the "
                f"folder that holds it (this one is {Path.cwd().name})"
            ) from error
        raise ConfigError(f"{field}: importing {name} failed: {_said(error)}") from error
    except Exception as error:
        raise ConfigError(f"{field}: importing {name} failed: {_said(error)}") from error


def _file(path: str, field: str) -> ModuleType:
    """A module from a file; the same one each time, under a name that pickling can find again."""
    file = Path(path).resolve()
    name = f"cotune_file_{file.stem}_{abs(hash(str(file))):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise ConfigError(f"{field}: no file {path} in {Path.cwd().name}; give its path from there")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{field}: {path} is no Python file; expected one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{field}: importing {path} failed: {_said(error)}") from error
    return module


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
