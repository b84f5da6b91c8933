"""The JSON schema of the run file agrees with what the run file's model takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from cotune.config.run_file import parse_config
from cotune.config.schema import run_schema
from cotune.errors import ConfigError
from tests.run_files import tiny

ROOT = Path(__file__).parents[2]
SHIPPED = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("src/cotune/experiments/*.yaml")])
SCHEMA = run_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def problems(raw: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(json.loads(json.dumps(raw)))]


def test_it_is_a_json_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert "2020-12" in SCHEMA["$schema"]
    assert "discriminator" not in json.dumps(SCHEMA)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_run_files_are_valid(file: Path) -> None:
    raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert problems(raw) == []


def test_there_are_some() -> None:
    assert len(SHIPPED) >= 8


TEXTS = "<think> </think> <search> </search> <information> </information> <answer> </answer>"
FINE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "an instruction as a text": {"instruction": TEXTS},
    "an instruction with its place": {"instruction": {"text": TEXTS, "role": "system"}},
    "no instruction": {"instruction": None},
    "an environment as a kind": {"environment": "geo"},
    "an object": {"environment": "my.module:Class", "strategy": {"kind": "static"}},
    "rewards by name and by weight": {
        "environment": {"kind": "single_turn"}, "dataset": {"path": "x.jsonl"},
        "rewards": ["exact_match", {"function": "a.b:c", "weight": 2}],
        "strategy": {"kind": "static"},
    },
    "tools by name": {
        "environment": {"kind": "tools", "tools": ["a:b", {"function": "a:c", "seconds": 2}]},
        "dataset": {"name": "x"}, "rewards": ["exact_match"], "strategy": {"kind": "static"},
    },
    "generated questions by name": {
        "environment": {"kind": "reasoning-gym", "tasks": ["gcd", {"name": "lcm", "difficulty": [0, 1]}]},
        "strategy": {"kind": "static"},
    },
    "both methods": {"strategy": {"kind": "inspo+p2o", "inspo": {"parents": 1}, "p2o": {}}},
    "an endpoint": {"llm": {"kind": "openai", "model": "m", "base_url": None}},
    "no LLM": {"llm": None},
    "an LLM by name": {"llm": "my.py:MyLLM"},
    "a bank": {"llm": {"kind": "bank", "path": "texts.txt"}},
}  # fmt: skip
WRONG: dict[str, dict[str, Any]] = {
    "unknown field": {"straregy": {}},
    "unknown field of a section": {"training": {"stepz": 1}},
    "unknown option": {"strategy": {"kind": "p2o", "hints": {"beem": 3}}},
    "unknown kind": {"strategy": {"kind": "grpo"}},
    "no kind": {"strategy": None},
    "a kind without its name": {"llm": {"model": "m"}},
    "a type": {"seed": "one"},
    "out of range": {"training": {"steps": 0}},
    "a choice": {"policy": {"dtype": "float8"}},
    "a missing option": {"llm": {"kind": "openai"}},
    "a bank without a file": {"llm": {"kind": "bank"}},
}


def taken(raw: Any) -> bool:
    try:
        parse_config(raw, "test")
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("name", FINE)
def test_what_the_model_takes_the_schema_takes(name: str) -> None:
    raw = tiny(Path("out"), FINE[name])
    assert taken(raw)
    assert problems(raw) == []


@pytest.mark.parametrize("name", WRONG)
def test_what_the_model_refuses_the_schema_refuses(name: str) -> None:
    raw = tiny(Path("out"), WRONG[name])
    assert not taken(raw)
    assert problems(raw)


@pytest.mark.parametrize("name", ["output", "strategy"])
def test_what_has_no_default_is_required(name: str) -> None:
    raw = tiny(Path("out"))
    del raw[name]
    assert not taken(raw)
    assert problems(raw) == [f"'{name}' is a required property"]


def definition(name: str) -> dict[str, Any]:
    return SCHEMA["$defs"][name]


def test_fields_are_described_by_their_docstrings() -> None:
    training = definition("TrainingConfig")["properties"]
    assert training["steps"]["description"] == "Rollout batches: T."
    # A class of options describes its fields in its own docstring.
    assert "who writes candidates" in definition("InspoOptions")["description"]
