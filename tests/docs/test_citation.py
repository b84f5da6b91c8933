"""CITATION.cff, and the marker of a typed package."""

import tomllib
from importlib.resources import files

import yaml

from tests.docs.sources import ROOT


def test_the_citation_names_this_version_and_both_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    papers = {reference["notes"]: reference["url"] for reference in citation["references"]}
    assert papers == {
        "INSPO": "https://arxiv.org/abs/2512.01945",
        "P²O": "https://arxiv.org/abs/2603.21877",
    }


def test_the_package_says_that_it_is_typed() -> None:
    """py.typed is in the package's folder, all of which hatch puts into the wheel."""
    assert files("cotune").joinpath("py.typed").is_file()
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/cotune"]
    assert not {"include", "only-include", "exclude"} & set(wheel)
