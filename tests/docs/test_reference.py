"""The reference pages are complete: every field, command and public name, with a description."""

import dataclasses
import re
import sys
from collections.abc import Callable
from importlib import import_module

import pytest
import typer
from pydantic import BaseModel
from trl import GRPOConfig

import cotune
from cotune.cli.app import app
from cotune.config.run_file import TrainingConfig
from cotune.engines.trl.grpo_fields import REFUSED
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.methods.inspo.inspo import InspoOptions
from tests.docs.sources import ROOT

sys.path.append(str(ROOT / "scripts"))  # whose modules import each other
run_file = import_module("run_file")
reference = import_module("reference")


def test_the_pages_are_up_to_date() -> None:
    for file, text in reference.pages().items():
        said = f"{file.name} is out of date; run python scripts/reference.py"
        assert file.read_text(encoding="utf-8") == text, said


def section(page: str, title: str) -> str:
    """Return the text under a heading."""
    return re.split(r"^##", page.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def items(text: str) -> dict[str, tuple[str, str]]:
    """Return what stands in brackets, and the meaning, by field of a list."""
    lines = re.findall(r"^- ((?:`\w+`(?:, )?)+) \((.+?)\): (.+)$", text, re.MULTILINE)
    return {
        name: (kinds, meaning)
        for names, kinds, meaning in lines
        for name in re.findall(r"\w+", names)
    }


def test_every_field_says_what_it_means() -> None:
    assert run_file.undescribed() == []
    assert run_file.undescribed(SuiteConfig) == []


@pytest.mark.parametrize(
    ("page", "title", "options"),
    [
        (run_file.configuration_page, "training", TrainingConfig),
        (run_file.configuration_page, "strategy: inspo", InspoOptions),
        (run_file.suite_page, "The file", SuiteConfig),
    ],
)
def test_fields_stand_with_type_default_and_meaning(
    page: Callable[[], str], title: str, options: type
) -> None:
    own = (
        set(options.model_fields)
        if issubclass(options, BaseModel)
        else {field.name for field in dataclasses.fields(options)} - {"kind"}
    )
    assert set(items(section(page(), title))) == own


def test_every_command_with_its_arguments_and_options() -> None:
    page = reference.cli_page()
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    assert re.findall(r"^# (.*)$", page, re.MULTILINE) == ["Command line"]
    assert set(re.findall(r"^## cotune (.*)$", page, re.MULTILINE)) == set(commands)
    assert "`--install-completion`" in page
    assert len(commands) >= 7
    for name, command in commands.items():
        own = page.split(f"## cotune {name}\n", 1)[1].split("\n## ", 1)[0]
        assert f"cotune {name}" in own
        for parameter in command.params:
            if parameter.name != "help" and parameter.param_type_name == "option":
                assert f"`{parameter.opts[0]}" in own, f"{name} {parameter.opts}"
                assert parameter.help, f"{name} {parameter.opts} has no help"


def test_every_checked_field_of_grpo_config_is_on_its_page() -> None:
    page = reference.grpo_page()
    listed = dict(re.findall(r"^- `([\w.]+)`: (.+)$", page, re.M))
    refused = {name: f"{field.why}; {field.fix(name)}." for name, field in REFUSED.items()}
    assert listed == refused | reference.ADJUSTED
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert {name.split(".")[0] for name in (*REFUSED, *reference.ADJUSTED)} <= fields
    assert not REFUSED.keys() & reference.ADJUSTED.keys()


def test_every_public_name_once_and_in_a_group() -> None:
    page = reference.api_page()
    assert sorted(re.findall(r"^- `(\w+)`: \S", page, re.MULTILINE)) == sorted(cotune.__all__)
    errors = page.split("## Errors\n", 1)[1].split("\n## ")[0]
    assert {"ConfigError", "BudgetError"} <= set(re.findall(r"- `(\w+)`", errors))
    brought = page.split("## What you can bring\n", 1)[1].split("\n## ")[0]
    assert {"Environment", "LLM", "Retriever"} <= set(re.findall(r"- `(\w+)`", brought))
