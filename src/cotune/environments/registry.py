"""The registry of environments: cotune's own and those that installed packages add.

A package adds a kind through an entry point in the group `cotune.environments`: its name is the kind, its
value an `EnvironmentKind`. cotune's own are named in the same way, so that a kind is loaded when it is used.
"""

from collections.abc import Mapping
from functools import cache

from cotune.environments.environment_kind import EnvironmentKind
from cotune.utils.importing import import_object, kinds_with, load_kind

GROUP = "cotune.environments"
"""The entry-point group of environments."""
BUILT_IN: Mapping[str, str] = {
    "ladder": "cotune.worlds.ladder:KIND",
    "search": "cotune.environments.search:KIND",
    "single_turn": "cotune.environments.single_turn:KIND",
    "math": "cotune.environments.math:KIND",
    "tools": "cotune.environments.tools:KIND",
    "trl": "cotune.environments.trl_factory:KIND",
    "verifiers": "cotune.environments.verifiers:KIND",
    "python": "cotune.environments.python_object:KIND",
}
"""cotune's own kinds, each with the object that describes it."""


def kinds() -> list[str]:
    """Return all kinds: cotune's own, then those of installed packages."""
    return kinds_with(GROUP, BUILT_IN)


@cache
def kind_of(kind: str) -> EnvironmentKind:
    """Return the registry entry of an `environment.kind`.

    Raises:
        ConfigError: no such kind, or its package cannot be loaded.
    """
    if kind in BUILT_IN:
        return import_object(BUILT_IN[kind], "environment.kind")
    other = ", or name its class by environment: package.module:name"
    return load_kind(GROUP, kind, "environment.kind", EnvironmentKind, BUILT_IN, other)
