"""The reference pages are complete: every field, command and public name, with a description."""

import dataclasses
import re
import sys
from importlib import import_module

from trl import GRPOConfig

import cotune
from cotune.engines.trl.checks import REFUSED, refusal
from cotune.experiments.compare.suite_file import SuiteConfig
from tests.docs.sources import ROOT

sys.path.append(str(ROOT / "scripts"))  # whose modules import each other
run_file = import_module("run_file")
reference = import_module("reference")


def test_the_pages_are_up_to_date() -> None:
    for file, text in reference.pages().items():
        message = f"{file.name} is out of date; run python scripts/reference.py"
        assert file.read_text(encoding="utf-8") == text, message


def test_every_field_says_what_it_means() -> None:
    assert run_file.undescribed() == []
    assert run_file.undescribed(SuiteConfig) == []


def test_every_checked_field_of_grpo_config_is_on_its_page() -> None:
    page = reference.grpo_page()
    entries = dict(re.findall(r"^- `([\w.]+)`: (.+)$", page, re.M))
    refusals = {name: f"{refusal(name)}." for name in REFUSED}
    assert entries == refusals | reference.ADJUSTED
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert {name.split(".")[0] for name in (*REFUSED, *reference.ADJUSTED)} <= fields
    assert not REFUSED.keys() & reference.ADJUSTED.keys()


def test_every_public_name_once_and_in_a_group() -> None:
    page = reference.api_page()
    assert sorted(re.findall(r"^- `(\w+)`: \S", page, re.MULTILINE)) == sorted(cotune.__all__)
    errors = page.split("## Errors\n", 1)[1].split("\n## ")[0]
    assert {"ConfigError", "BudgetError"} <= set(re.findall(r"- `(\w+)`", errors))
    protocols = page.split("## What you can bring\n", 1)[1].split("\n## ")[0]
    assert {"Environment", "LLM", "Retriever"} <= set(re.findall(r"- `(\w+)`", protocols))
