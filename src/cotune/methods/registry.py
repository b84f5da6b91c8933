"""The registry of methods: cotune's own and those that installed packages add.

A package adds a method through an entry point in the group `cotune.methods`: its name is the kind,
its value a `Method` object. cotune's own are named in the same way, so that a method is loaded only when it is used.
"""

from collections.abc import Mapping
from functools import cache

from cotune.methods.method import Method
from cotune.utils.importing import kinds_with, load_kind

GROUP = "cotune.methods"
"""The entry-point group of methods."""
BUILT_IN: Mapping[str, str] = {
    "static": "cotune.methods.static:METHOD",
    "inspo": "cotune.methods.inspo.inspo:METHOD",
    "p2o": "cotune.methods.p2o.p2o:METHOD",
    "gepa": "cotune.methods.fst:GEPA",
    "fst": "cotune.methods.fst:METHOD",
}


@cache
def method_of(kind: str) -> Method:
    """Return the method of a `strategy.kind`. ConfigError: no such method, or its package cannot be loaded."""
    return load_kind(GROUP, kind, "strategy.kind", BUILT_IN)


def kinds() -> list[str]:
    """Return all kinds: cotune's own, then those of installed packages."""
    return kinds_with(GROUP, BUILT_IN)
