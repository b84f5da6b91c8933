"""CITATION.cff, and the marker of a typed package."""

import re
import tomllib
from importlib.resources import files

import yaml

from tests.docs.sources import ROOT


def test_the_citation_names_the_software_and_both_papers() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["cff-version"] == "1.2.0"
    assert cited["message"]
    assert cited["title"].startswith("cotune")
    assert cited["authors"]
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"]
    papers = {reference["notes"]: reference for reference in cited["references"]}
    assert set(papers) == {"INSPO", "P²O"}
    for name, arxiv, authors in (("INSPO", "2512.01945", 4), ("P²O", "2603.21877", 9)):
        paper = papers[name]
        assert paper["type"] == "article"
        assert paper["url"] == f"https://arxiv.org/abs/{arxiv}"
        assert len(paper["authors"]) == authors
        assert all(set(author) == {"family-names", "given-names"} for author in paper["authors"])


def test_the_papers_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    links = set(re.findall(r"https://arxiv\.org/abs/[\d.]+", readme))
    assert links >= set(re.findall(r"https://arxiv\.org/abs/[\d.]+", cited))


def test_the_package_says_that_it_is_typed() -> None:
    """py.typed is in the package's folder, all of which hatch puts into the wheel."""
    assert files("cotune").joinpath("py.typed").is_file()
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    wheel = tools["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/cotune"]
    assert not {"include", "only-include", "exclude"} & set(wheel)
