"""The registry of methods: cotune's own and those that installed packages add.

A package adds a method through an entry point in the group `cotune.methods`: its name is the kind,
its value a `Method` object.
"""

from functools import cache

from cotune.methods import fst, static
from cotune.methods.inspo import inspo
from cotune.methods.method import Method
from cotune.methods.p2o import p2o
from cotune.utils.importing import kinds_with, load_kind

GROUP = "cotune.methods"
"""The entry-point group of methods."""
BUILT_IN: dict[str, Method] = {
    method.kind: method
    for method in (static.METHOD, inspo.METHOD, p2o.METHOD, fst.GEPA, fst.METHOD)
}


@cache
def method_of(kind: str) -> Method:
    """Return the method of a `strategy.kind`. ConfigError: no such method, or its package cannot be loaded."""
    own_method = BUILT_IN.get(kind)
    return own_method or load_kind(GROUP, kind, "strategy.kind", BUILT_IN)


def kinds() -> list[str]:
    """Return all kinds: cotune's own, then those of installed packages."""
    return kinds_with(GROUP, BUILT_IN)
