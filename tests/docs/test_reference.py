"""The reference pages are complete: every field, command and public name, with a description."""

import dataclasses
import importlib.util
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Literal

import pytest
import typer
from annotated_types import Ge
from pydantic import BaseModel, ConfigDict, Field
from trl import GRPOConfig

import cotune
from cotune.cli.app import app
from cotune.config.run_file import TrainingConfig
from cotune.engines.trl.grpo_fields import REFUSED
from cotune.experiments.compare.suite_file import SuiteConfig
from cotune.methods.inspo.inspo import InspoOptions
from tests.docs.sources import ROOT


def load(name: str) -> ModuleType:
    """Import a module of scripts/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


run_file = load("run_file")
reference = load("reference")


def test_the_pages_are_up_to_date() -> None:
    for file, text in reference.pages().items():
        said = f"{file.name} is out of date; run python scripts/reference.py"
        assert file.read_text(encoding="utf-8") == text, said


@pytest.fixture(scope="module")
def configuration() -> str:
    return run_file.configuration_page()


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


def test_a_suites_fields_have_a_page() -> None:
    listed = items(section(run_file.suite_page(), "The file"))
    assert set(listed) == set(SuiteConfig.model_fields)


def test_a_field_of_which_nothing_is_said_is_found() -> None:
    @dataclass(frozen=True)
    class Silent:
        """Fields.

        Attributes:
            said: what it is.
        """

        said: int = 1
        unsaid: int = 2

    assert run_file.undescribed(Silent) == ["unsaid"]


@pytest.mark.parametrize(
    ("title", "options"), [("training", TrainingConfig), ("strategy: inspo", InspoOptions)]
)
def test_fields_stand_with_type_default_and_meaning(
    configuration: str, title: str, options: type
) -> None:
    own = (
        set(options.model_fields)
        if issubclass(options, BaseModel)
        else {field.name for field in dataclasses.fields(options)} - {"kind"}
    )
    assert set(items(section(configuration, title))) == own


def test_items_are_what_the_classes_say(configuration: str) -> None:
    training = items(section(configuration, "training"))
    assert training["group_size"] == ("integer ≥ 2, `5`", "Rollouts per question: G.")
    assert training["learning_rate"][0] == "number > 0, `5.0e-7`"
    assert training["rollout_budget"][0] == "integer ≥ 1 or null"
    assert training["frozen"][0] == "`false`"
    inspo = items(section(configuration, "strategy: inspo"))
    assert inspo["proposer"][0].startswith("`reflection`/`paraphrase`")
    whole = items(section(configuration, "The file"))
    assert whole["output"][0] == "path, **required**"
    assert "[inspo](#strategy-inspo)" in whole["strategy"][0]


def test_what_several_sections_say_stands_once(configuration: str) -> None:
    gepa, fst = (items(section(configuration, f"strategy: {kind}")) for kind in ("gepa", "fst"))
    assert gepa["dev_size"][1].startswith("Training questions")
    assert fst["dev_size"] == ("integer, `40`", "As in [strategy: gepa](#strategy-gepa).")


def test_every_section_has_an_anchor_of_its_own(configuration: str) -> None:
    anchors = [run_file._anchor(title) for title in re.findall(r"^##+ (.*)$", configuration, re.M)]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([\w-]+)\)", configuration)) <= set(anchors)
    assert "strategy-inspop2o" in anchors


def test_pydantic_and_dataclass_fields_read_the_same() -> None:
    class Model(BaseModel):
        model_config = ConfigDict(use_attribute_docstrings=True)
        low: int = Field(default=1, ge=0)
        """How low | how <b>."""
        kind: Literal["a"] = "a"

    @dataclass(frozen=True)
    class Options:
        """Options.

        Attributes:
            low, high: how low
                and how high.
        """

        low: Annotated[int, Ge(0)]
        high: float = 10.0

    (low, _), (also, high) = run_file.fields_of(Model), run_file.fields_of(Options)
    assert (low.bounds, low.default, also.bounds, also.default) == ("≥ 0", "1", "≥ 0", None)
    assert also.text == high.text == "how low and how high."
    assert run_file.escaped(low.text) == "How low \\| how \\<b>."


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (5e-7, "5.0e-7"), (0.2, "0.2"), (1.0, "1.0"), ("", '""')],
)
def test_defaults_are_written_as_yaml_reads_them(value: object, text: str) -> None:
    import yaml

    assert run_file.yaml_text(value) == text
    assert yaml.safe_load(text) == value


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


def test_the_overview_names_every_command() -> None:
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    linked = re.findall(r"\[([\w-]+)\]\(#cotune-[\w-]+\)", reference.cli_page())
    assert set(linked) == set(commands)


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
