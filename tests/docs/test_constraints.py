"""The pins of each engine's environment lie in the ranges of pyproject.toml."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED = {"constraints.txt": "dev", "constraints-verl.txt": "verl,test"}


def pins(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line and not line.startswith("#")]
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", row) for row in rows]
    assert all(found), [row for row, match in zip(rows, found, strict=True) if not match]
    named = [(canonicalize_name(m[1]), Version(m[2])) for m in found if m]
    assert len(named) == len(dict(named))
    return dict(named)


def of_extras(extras: str) -> Iterator[Requirement]:
    for extra in extras.split(","):
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == "cotune":
                yield from of_extras(",".join(requirement.extras))
            else:
                yield requirement


@pytest.mark.parametrize(("file", "extras"), INSTALLED.items())
def test_pins_are_complete_and_in_range(file: str, extras: str) -> None:
    pinned = pins(file)
    wanted = [*map(Requirement, PROJECT["dependencies"]), *of_extras(extras)]
    assert len(wanted) > 20
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), (
            f"{file}: {requirement}"
        )


@pytest.mark.parametrize(
    ("file", "other"), [("constraints.txt", "verl"), ("constraints-verl.txt", "trl")]
)
def test_an_environment_holds_one_engine(file: str, other: str) -> None:
    assert other not in pins(file)


def test_the_makefile_installs_what_is_pinned() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for file, extras in INSTALLED.items():
        assert re.search(rf"-e '\.\[{extras}\]'( -e \S+)? -c {file}", makefile)
