"""The registry of methods: cotune's own and those that installed packages add.

A package adds a method through an entry point in the group `cotune.methods`: its name is the kind,
its value a `Method` object.
"""

from functools import cache
from typing import Any, cast

from cotune.errors import ConfigError
from cotune.methods import composed, static
from cotune.methods.fst import fst, gepa
from cotune.methods.inspo import inspo
from cotune.methods.method import Method
from cotune.methods.p2o import p2o
from cotune.utils.importing import load_registered, registered

GROUP = "cotune.methods"
"""The entry-point group of methods."""
BUILT_IN: dict[str, Method[Any]] = {
    method.kind: method
    for method in (
        static.METHOD, inspo.METHOD, p2o.METHOD, composed.METHOD, gepa.METHOD, fst.METHOD,
    )
}  # fmt: skip


def method_of(kind: str) -> Method[Any]:
    """Return the method of a `strategy.kind`.

    Raises:
        ConfigError: no such method, or its package cannot be loaded.
    """
    return BUILT_IN[kind] if kind in BUILT_IN else _added(kind)


@cache
def _added(kind: str) -> Method[Any]:
    if kind not in registered(GROUP):
        kinds = ", ".join(map(repr, (*BUILT_IN, *added())))
        raise ConfigError(f"strategy.kind: {kind!r} is unknown; expected one of {kinds}")
    method: Method[Any] | object = load_registered(GROUP, kind, "strategy.kind")
    if isinstance(method, Method) and method.kind == kind:
        return cast("Method[Any]", method)
    raise ConfigError(
        f"strategy.kind: the entry point {kind!r} of {GROUP} is not a cotune.methods.method.Method "
        f"whose options have kind {kind!r}; fix or reinstall its package"
    )


def added() -> list[str]:
    """Return the kinds that installed packages add, sorted."""
    return sorted(registered(GROUP).keys() - BUILT_IN)
