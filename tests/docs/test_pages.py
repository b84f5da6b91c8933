"""The pages agree with the code: commands, run files, Python, options, paths."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import cotune
from cotune.cli.app import app
from cotune.config import resuming
from cotune.config.run_file import RunConfig, parse_config
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.run.record import Record
from tests.docs.sources import DOCS, ROOT, blocks, pages

PAGES = {path.relative_to(DOCS).as_posix(): path for path in pages()}
BASE: dict[str, Any] = {
    "output": "runs/of-the-documentation",
    "policy": {"path": "me/model"},
    "environment": {"kind": "geo"},
    "strategy": {"kind": "static"},
}


def text_of(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


def command_lines() -> list[tuple[str, str]]:
    """Return (page, line) for every line of a shell block."""
    return [
        (name, line.strip())
        for name, page in PAGES.items()
        for block in blocks(page, "sh")
        for line in block.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


def cotune_arguments(line: str) -> list[str] | None:
    """Return the arguments that a line passes to cotune; None if it does not start cotune."""
    words = shlex.split(line, comments=True)
    for i, word in enumerate(words):
        if word == "cotune" and (i == 0 or words[i - 1] == "-m"):
            return words[i + 1 :]
    return None


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_commands_exist_and_take_what_they_are_given(page: str, line: str) -> None:
    if line.startswith("make "):
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        target = shlex.split(line, comments=True)[1]
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), line
    arguments = cotune_arguments(line)
    if not arguments or arguments[0].startswith("-"):
        return
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert arguments[0] in commands, line
    options = {o for p in commands[arguments[0]].params for o in (*p.opts, *p.secondary_opts)}
    flags = {word.partition("=")[0] for word in arguments[1:] if re.match(r"--?[a-z]", word)}
    assert flags <= options | {"--help"}, line
    for word in arguments[1:]:
        if word.startswith("configs/"):
            assert (ROOT / word).is_file(), line


def run_files() -> list[tuple[str, str]]:
    return [(name, block) for name, page in PAGES.items() for block in blocks(page, "yaml")]


@pytest.mark.parametrize(("page", "text"), run_files())
def test_run_files_and_their_parts_are_valid(page: str, text: str) -> None:
    raw = yaml.safe_load(text)
    if not set(raw) & set(RunConfig.model_fields):
        return  # another tool's file
    if "methods" in raw:
        assert SuiteConfig.model_validate(raw)
        return
    assert parse_config({**BASE, **raw}, page)


def test_python_is_python_and_its_names_are_public() -> None:
    snippets = [(n, block) for n, page in PAGES.items() for block in blocks(page, "python")]
    assert snippets
    for name, block in snippets:
        compile(block.replace("…", "..."), name, "exec")
        assert set(re.findall(r"\bcotune\.([A-Za-z]\w*)\b", block)) <= set(cotune.__all__) | {
            "engines",
            "retrieval",
            "testing",
        }, name


def test_the_costs_are_read_as_shown(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = Record.create(cwd / "runs" / "ladder-inspo", {})
    record.begin_attempt(None)
    record.step = 1
    record.count("train", 40, 900)
    record.charge("m", money=0.5)
    record.begin_attempt(0)  # throws that away
    record.step = 1
    record.count("train", 40, 1000)
    (code,) = blocks(PAGES["how-to/costs.md"], "python")
    exec(compile(code, "costs.md", "exec"), {})
    *_, sums, money = capsys.readouterr().out.splitlines()
    assert (sums.split(), money) == (["train", "40", "1000", "0", "0"], "0.5")


def test_what_a_resume_needs_unchanged_is_named() -> None:
    text = text_of("how-to/resuming.md")
    fixed = (*resuming._FIXED, *resuming._FIXED_IN_TRAINING)
    for name in fixed:
        assert f"`{name}`" in text, name


FOLDERS = "src|configs|examples|tests|scripts|lab|docs"


def test_paths_that_are_named_exist() -> None:
    for page in (*PAGES.values(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        text = page.read_text(encoding="utf-8")
        for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_links_into_the_lab_lead_to_a_heading() -> None:
    for page in (*PAGES.values(), ROOT / "README.md"):
        links = re.findall(r"\(((?:\.\./)*lab/[^)#]+)(?:#([^)]+))?\)", page.read_text("utf-8"))
        for path, anchor in links:
            text = (page.parent / path).resolve().read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
            assert not anchor or anchor in slugs, f"{page.name}: {path}#{anchor}"


def test_the_architecture_names_the_packages_and_modules_there_are() -> None:
    text = text_of("architecture.md")
    package = ROOT / "src" / "cotune"
    tree = text.partition("    src/cotune/\n")[2].partition("    lab/")[0]
    names = re.findall(r"([\w]+\.py|\w+/)(?= )", "\n".join(line[:40] for line in tree.splitlines()))
    modules = {f"{p.name}/" for p in package.iterdir() if (p / "__init__.py").is_file()}
    modules |= {p.name for p in package.glob("*.py") if not p.name.startswith("__")}
    assert set(names) == modules
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert (package / path).is_file() or (ROOT / path).is_file(), path
