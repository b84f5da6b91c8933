"""The sections of a run file that say what is trained on."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.cost import split_sizes
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.engines.preflight import OPTIONAL
from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.environments.registry import BUILT_IN, GROUP, PythonOptions, kind_of, python_environment
from cotune.errors import ConfigError
from tests.helpers import install, raises_line
from tests.run_files import environment_of

MINIMAL: dict[str, Any] = {
    "output": "runs/x",
    "policy": {"path": "me/model"},
    "strategy": {"kind": "static"},
}
DATA = {"dataset": {"path": "data.jsonl"}, "rewards": ["exact_match"]}


def parse(**sections: Any) -> RunConfig:
    return parse_config(MINIMAL | sections, "test")


def test_the_shortest_run_file_is_a_data_set_and_a_reward() -> None:
    config = parse(**DATA)
    assert config.environment.kind == "single_turn"
    assert [(r.function, r.weight) for r in config.rewards] == [("exact_match", 1.0)]
    assert parse_config(dump_config(config), "again") == config
    with pytest.raises(ConfigError, match=r"policy\.path: missing; expected the model to train on"):
        parse_config(MINIMAL | DATA | {"policy": {}}, "test")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("geo", {"kind": "geo"}),
        ("pkg.mod:Env", {"kind": "python", "object": "pkg.mod:Env"}),
        ("env.py:Env", {"kind": "python", "object": "env.py:Env"}),
        ({"kind": "geo", "train": 3}, {"kind": "geo", "train": 3}),
    ],
)
def test_shorthands_of_an_environment(raw: object, expected: dict[str, Any]) -> None:
    dumped = dump_config(parse(environment=raw))["environment"]
    assert dumped.items() >= expected.items()


@pytest.mark.parametrize(
    ("sections", "part"),
    [
        ({}, "dataset: missing; environment.kind single_turn brings no questions"),
        ({"environment": "geo", **DATA}, "dataset: environment.kind geo brings its own questions"),
        ({**DATA, "dataset": {"path": "x", "test": 0}}, "dataset.test is 0; expected 1 questions or more, a file"),
        ({**DATA, "dataset": {"path": "x", "spilt": "a"}}, "dataset.spilt: unknown field (did you"),
        ({"environment": {"kind": "tool"}}, "(did you mean tools?)"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_said_in_a_line(sections: dict[str, Any], part: str) -> None:
    with raises_line(part):
        parse(**sections)


def test_what_the_class_of_an_environment_raises_is_one_line(tmp_path: Path) -> None:
    code = "class Mine:\n    def __init__(self, size):\n        len(size)\n"
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    name = f"{tmp_path / 'mine.py'}:Mine"
    with pytest.raises(ConfigError, match=r"Mine raised TypeError: .*\(mine.py, line 3\); fix it"):
        python_environment(PythonOptions(object=name, args={"size": 3}), None)


def test_an_instruction_is_a_text_or_a_text_and_a_place() -> None:
    assert parse(environment="geo").instruction.text is None
    world = {"kind": "geo", "train": 6, "validation": 3, "test": 3}
    placed = {"role": "system", "system": "replace"}
    config = parse(environment=world, instruction=placed)
    environment = environment_of(config)
    assert isinstance(environment, TaskEnvironment)
    assert environment.prompt_format == PromptFormat(
        role="system", system="replace", question_prefix="Question: "
    )


TOY = "tests.environments.toy_environment"


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", monkeypatch, GROUP, f"echo = {TOY}:KIND")


def test_each_kind_has_the_name_that_it_is_listed_under() -> None:
    for name in BUILT_IN:
        assert kind_of(name).kind == name
        assert kind_of(name).extra in ("", *OPTIONAL)


@pytest.mark.usefixtures("echo")
def test_a_package_adds_a_kind_to_the_run_file() -> None:
    raw = {"kind": "echo", "word": "no"}
    config = parse(environment=raw)
    assert config.environment_kind is kind_of("echo")
    assert parse_config(dump_config(config), "test") == config
    assert dump_config(config)["environment"] == raw
    assert environment_of(config).tasks("test")[0].answers == ("no",)
    assert split_sizes(config) == {"train": 3, "validation": 1, "test": 2}
    assert dump_config(parse(environment="echo"))["environment"] == {"kind": "echo", "word": "yes"}


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
    with raises_line(match=message):
        parse(environment=environment)
