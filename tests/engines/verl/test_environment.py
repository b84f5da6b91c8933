"""The environment that veRL's tests run in."""

from importlib.metadata import requires, version

from packaging.requirements import Requirement

from cotune.cli import doctor
from cotune.utils.packages import installed


def test_verl_is_installed_as_cotune_requires_it_and_trl_is_not() -> None:
    needed = [Requirement(text) for text in requires("cotune") or ()]
    of_extra = [r for r in needed if r.marker is not None and r.marker.evaluate({"extra": "verl"})]
    assert "verl" in {requirement.name for requirement in of_extra}
    for requirement in of_extra:
        assert requirement.specifier.contains(version(requirement.name)), str(requirement)
    assert installed("trl") is None
    assert not any(isinstance(engine, Exception) for engine in doctor.engines())
