"""Objects that a run file names: `package.module:name`, or `file.py:name`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from cotune.errors import ConfigError
from cotune.utils.text import named

_FILE_MODULE = "cotune_file_"
_SCRIPT = "__main__"


def import_object(reference: str, field: str) -> Any:
    """Import the object of `package.module:name` or `file.py:name`.

    Packages are searched on Python's path and in the current folder; file paths are relative to it. Raises ConfigError:
    the object is not found, or the import raised; names the field.
    """
    where, name = split_reference(reference)
    if not (where and name):
        raise ConfigError(
            f"{field}: {reference!r} names no object; expected package.module:name or file.py:name"
        )
    if where == _SCRIPT:
        raise ConfigError(
            f"{field}: {name} cannot be made again outside its script; move functions and classes into a module beside "
            "it, name another here, as in --set rewards=[my_rewards.py:exact], or score in the script by "
            "trainer.evaluate(rows)"
        )
    module = _file(where, field) if is_file(where) else _module(where, field)
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise ConfigError(f"{field}: {where} has no {name}; correct the name")
        target = getattr(target, part)
    return target


def reference_to(value: Any) -> str:
    """Return the `package.module:name` or `file.py:name` of an object; `__main__:name` for what cannot be imported.

    To import a script's own functions would run the script.
    """
    name = getattr(value, "__qualname__", type(value).__name__)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part, None)
    if target is not value or module is None:
        return f"{_SCRIPT}:{getattr(value, '__name__', name)}"
    is_file_module = module.__name__.startswith(_FILE_MODULE)
    return f"{module.__file__ if is_file_module else module.__name__}:{name}"


def split_reference(reference: str) -> tuple[str, str]:
    """Return the module or file of a reference, and the object's name; "" for what is missing."""
    module, _, name = reference.partition(":")
    return module, name


def is_file(where: str) -> bool:
    """Return whether the first part of a reference is a file, not a module."""
    return where.endswith(".py")


def registered(group: str) -> dict[str, EntryPoint]:
    """Return what installed packages register in an entry-point group, by name."""
    return _registered(group, tuple(sys.path))


@cache
def _registered(group: str, path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Read the packages on a path; a suite parses hundreds of run files."""
    return {entry.name: entry for entry in entry_points(group=group)}


def kinds_with(group: str, built_in: Iterable[str]) -> list[str]:
    """Return all kinds: cotune's own, then those of installed packages, sorted."""
    own_kinds = list(built_in)
    return own_kinds + sorted(registered(group).keys() - set(own_kinds))


def load_kind(group: str, kind: str, field: str, built_in: Mapping[str, str]) -> Any:
    """Return the object of a kind: cotune's own, or what a package registered.

    `field` is the run file's field that names the kind.

    Raises ConfigError: no such kind, or its package cannot be imported.
    """
    if kind in built_in:
        return import_object(built_in[kind], field)
    if kind not in registered(group):
        kinds = ", ".join(map(repr, kinds_with(group, built_in)))
        raise ConfigError(f"{field}: {kind!r} is unknown; expected one of {kinds}")
    try:
        return registered(group)[kind].load()
    except Exception as error:  # an import may raise anything
        raise ConfigError(
            f"{field}: {kind!r} cannot be loaded ({named(error)}); fix or reinstall its package"
        ) from error


def import_from(folders: Iterable[Path]) -> None:
    """Append folders to Python's path, such as a script's own folder."""
    for folder in folders:
        path = str(folder.resolve())
        if path not in sys.path:
            sys.path.append(path)


def _module(name: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{field}: importing {name} failed: {named(error)}; fix it, install its package, or run cotune from "
            "the folder that holds it"
        ) from error


def _file(path: str, field: str) -> ModuleType:
    """Import a file as a module, once, under a name that pickling can find again."""
    file = Path(path).resolve()
    name = f"{_FILE_MODULE}{file.stem}_{abs(hash(str(file))):x}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise ConfigError(f"{field}: no file {path} in {Path.cwd().name}; give its path from there")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end the process
        del sys.modules[name]
        raise ConfigError(f"{field}: importing {path} failed: {named(error)}") from error
    return module
