"""The registry of environments: what it lists, and a kind that a package adds."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.cost import split_sizes
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.environments.registry import BUILT_IN, GROUP, kind_of
from cotune.errors import ConfigError
from tests.helpers import install
from tests.run_files import environment_of

TOY = "tests.environments.toy_environment"
LEAST = {"output": "runs/x", "strategy": {"kind": "static"}}


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, GROUP, f"echo = {TOY}:KIND")


def parsed(environment: Any) -> RunConfig:
    return parse_config({**LEAST, "environment": environment}, "test")


def test_each_kind_has_the_name_that_it_is_listed_under() -> None:
    for name in BUILT_IN:
        assert kind_of(name).kind == name
        assert kind_of(name).options.__doc__


@pytest.mark.usefixtures("echo")
def test_a_package_adds_a_kind_to_the_run_file() -> None:
    raw = {"kind": "echo", "word": "no"}
    config = parsed(raw)
    assert config.environment_kind is kind_of("echo")
    assert parse_config(dump_config(config), "test") == config
    assert dump_config(config)["environment"] == raw
    assert environment_of(config).tasks("test")[0].answers == ("no",)
    assert split_sizes(config) == {"train": 3, "validation": 1, "test": 2}
    assert dump_config(parsed("echo"))["environment"] == {"kind": "echo", "word": "yes"}


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"kind": "echo", "wrod": "x"}, r"environment\.wrod: unknown field"),
        ({"kind": "echo", "word": 3}, r"environment\.word: .*string"),
        ({"kind": "echo", "word": ""}, r"environment\.word is empty; expected a word"),
        ({"kind": "nobodys"}, r"environment\.kind: 'nobodys' is unknown; expected one of 'ladder'"),
    ],
)
def test_what_is_wrong_with_it_is_one_line(environment: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parsed(environment)
    assert "\n" not in str(caught.value)
