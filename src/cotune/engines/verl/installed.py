"""Whether the environment at hand can run veRL. Imports nothing of it."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.specifiers import SpecifierSet

from cotune.contracts import ConfigError

VERSIONS = SpecifierSet(">=0.9.1,<0.10")
"""Its V1 trainer, TransferQueue and agent loops are read and ridden; each minor release moves them."""


def check_verl() -> None:
    """Raises ConfigError where veRL is missing, of another version, or beside what breaks it."""
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise ConfigError(
            "training.engine is verl, but verl is not installed: pip install 'cotune[verl]' in an "
            "environment of its own, or set training.engine: trl"
        ) from None
    if not VERSIONS.contains(found, prereleases=True):
        raise ConfigError(
            f"training.engine is verl, but verl {found} is installed; expected {VERSIONS}: "
            "pip install 'cotune[verl]'"
        )
    if find_spec("transfer_queue") is None:
        raise ConfigError(
            "training.engine is verl, but its TransferQueue is not installed: "
            "pip install 'cotune[verl]'"
        )
    if find_spec("trl") is not None:
        raise ConfigError(
            "trl is installed beside verl, which cannot be imported with it; use an environment for "
            "each engine (pip uninstall trl in this one)"
        )
