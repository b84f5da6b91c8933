"""Which engines are installed. Each needs an environment of its own: docs/how-to/install.md."""

from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from packaging.version import Version

from cotune.errors import ConfigError

Engine = Literal["trl", "verl"]
ENGINES: tuple[Engine, ...] = ("trl", "verl")
"""Values of `training.engine`; each is the name of its package and of cotune's extra, too."""
BREAKS_VERL = Version("1.16")
"""From this TRL on, veRL 0.9 fails at import beside it: it asks any TRL for a class that is gone."""


def installed(package: str) -> str | None:
    """The version of a package; None where it is not installed. Nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def together() -> str | None:
    """Says in a line that TRL and veRL cannot be used from one environment; None where they can."""
    trl, verl = installed("trl"), installed("verl")
    if trl is None or verl is None or Version(trl) < BREAKS_VERL:
        return None
    return f"trl {trl} and verl {verl} are installed together, and veRL fails at import then"


def check_engine(engine: Engine) -> None:
    """Raises ConfigError where a run file's engine cannot be used from this environment."""
    if installed(engine) is None:
        others = [name for name in ENGINES if installed(name)]
        if others:
            raise ConfigError(
                f"training.engine is {engine}, but {engine} is not installed, and {others[0]} is: set "
                f"training.engine: {others[0]}, or pip install 'cotune[{engine}]' into another "
                "environment"
            )
        raise ConfigError(
            f"training.engine is {engine}, but {engine} is not installed: "
            f"pip install 'cotune[{engine}]'"
        )
    if engine == "verl" and (clash := together()):
        raise ConfigError(
            f"training.engine is verl, but {clash}: pip install 'cotune[verl]' into an environment "
            "without trl"
        )


def need_trl(what: str) -> None:
    """Raises ConfigError unless TRL is installed; `what` says what needs it."""
    if installed("trl") is None:
        raise ConfigError(f"{what} needs trl, which is not installed: pip install 'cotune[trl]'")
