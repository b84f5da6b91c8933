"""The registry of environments: cotune's own and those that installed packages add.

A package adds a kind through an entry point in the group `cotune.environments`: its name is the kind, its
value an `EnvironmentKind`. cotune's own are named in the same way, so that a kind is loaded when it is used.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from cotune.environments.environment_kind import EnvironmentKind
from cotune.errors import ConfigError
from cotune.utils.importing import import_object, load_registered, registered

GROUP = "cotune.environments"
"""The entry-point group of environments."""
BUILT_IN: Mapping[str, str] = {
    "ladder": "cotune.worlds.ladder:KIND",
    "search": "cotune.environments.search:KIND",
    "reasoning-gym": "cotune.environments.reasoning_gym:KIND",
    "single_turn": "cotune.environments.single_turn:KIND",
    "math": "cotune.environments.math:KIND",
    "tools": "cotune.environments.tools:KIND",
    "trl": "cotune.environments.trl_factory:KIND",
    "verifiers": "cotune.environments.verifiers:KIND",
    "python": "cotune.environments.python_object:KIND",
}
"""cotune's own kinds, each with the object that describes it."""


def kinds() -> tuple[str, ...]:
    """Return all kinds: cotune's own, then those of installed packages."""
    return (*BUILT_IN, *sorted(registered(GROUP).keys() - BUILT_IN.keys()))


@cache
def kind_of(kind: str) -> EnvironmentKind[Any]:
    """Return the registry entry of an `environment.kind`.

    Raises:
        ConfigError: no such kind, or its package cannot be loaded.
    """
    if kind in BUILT_IN:
        return import_object(BUILT_IN[kind], "environment.kind")
    if kind not in kinds():
        names = ", ".join(map(repr, kinds()))
        raise ConfigError(f"environment.kind: {kind!r} is unknown; expected one of {names}")
    entry: object = load_registered(GROUP, kind, "environment.kind")
    if isinstance(entry, EnvironmentKind) and entry.kind == kind:
        return cast("EnvironmentKind[Any]", entry)
    raise ConfigError(
        f"environment.kind: the entry point {kind!r} of {GROUP} is not a "
        "cotune.environments.environment_kind.EnvironmentKind whose options have that kind; fix or "
        "reinstall its package, or name its class by environment: package.module:name"
    )
