"""The README: its code, commands and links are valid."""

import re
from pathlib import Path

import yaml

import cotune
from cotune.config.run_file import parse_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_run_file_is_one() -> None:
    (text,) = blocks("yaml")
    config = parse_config(yaml.safe_load(text), "README.md")
    assert (config.environment.kind, config.strategy.kind) == ("tools", "inspo")


def test_the_library_names_exist() -> None:
    (text,) = blocks("python")
    assert set(re.findall(r"cotune\.(\w+)", text)) <= set(cotune.__all__)
    compile(text.replace("…", "..."), "README.md", "exec")


def test_make_targets_and_linked_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    # Links between the pages of docs/ are checked where they are built (tests/docs).
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for page in pages:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
