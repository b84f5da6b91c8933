"""The suite file: what it takes, and what is wrong with one in a line."""

from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.experiments.compare.running import cells_of
from cotune.experiments.compare.suite_file import expand, load_suite, method_names
from cotune.utils.text import slug
from tests.experiments.compare.folders import suite_file
from tests.helpers import raises_line


def test_the_base_may_be_a_file_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("strategy: {kind: static}\n")
    assert load_suite(suite_file(tmp_path, base="base.yaml"))[1] == {"strategy": {"kind": "static"}}
    with pytest.raises(ConfigError, match=r"missing\.yaml: No such file"):
        load_suite(suite_file(tmp_path, base="missing.yaml"))


def test_fields_are_set_on_the_command_line(tmp_path: Path) -> None:
    file = suite_file(tmp_path)
    suite, _ = load_suite(file, ["seeds=[4]", "set.training.kl=0.25"])
    assert suite.seeds == (4,)
    assert suite.set == {"training": {"kl": 0.25}}
    with pytest.raises(ConfigError, match=r"suite\.yaml with --set: budget"):
        load_suite(file, ["budget=none"])


def test_changes_are_nested_or_dotted() -> None:
    assert expand({"a.b": 1, "a": {"c": {"d.e": 2}}}) == {"a": {"b": 1, "c": {"d": {"e": 2}}}}
    assert expand("no mapping") == "no mapping"


def test_a_rows_folder_is_plain() -> None:
    assert slug("P²O, τ = 1") == "p2o-1"
    assert slug("../..") == ""
    assert all(slug(name) for name in method_names())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"bugdet": 3}, r"bugdet: unknown field \(did you mean budget\?\)"),
    "a method in place of a kind": (
        {"by_strategy": {"inspo-mixed": {"seed": 1}}},
        "by_strategy: 'inspo-mixed' is not a strategy.kind; expected one of static, inspo",
    ),
    "no such method": ({"methods": ["grpo", "inspoo"]}, "'inspoo' is unknown; expected one of grpo, gepa, prompt-before-rl"),
    "a row twice": ({"methods": ["grpo", "inspo", "inspo"]}, "inspo is listed twice"),
    "no such baseline": ({"baseline": "sapo"}, "baseline is 'sapo'; expected one of methods"),
    "a seed twice": ({"seeds": [1, 1]}, r"seeds is \[1, 1\]"),
    "no methods": ({"methods": []}, r"methods: expected 1 or more items; got \[\]"),
    "a compute class": ({"methods": ["grpo", {"method": "inspo", "compute": "double"}]}, "compute is 'double'; expected \"1x\""),
    "a field of the run file": ({"set": {"training.stepz": 1}}, r"training\.stepz: unknown field"),
    "a value for a section": ({"set": {"training": None}}, "set: training: expected fields below it; got None"),
    "a value for a section of the base": ({"base": {"training": 5}, "methods": ["gepa"], "baseline": "gepa"}, "training: expected fields"),
    "a batch of no size": ({"set": {"training.group_size": None}}, r"training\.group_size: expected a valid integer; got None"),
    "a base that is no file": ({"base": []}, r"base: expected a path or fields; got \[\]"),
    "a budget below one batch": ({"budget": 4}, "less than one batch of 8; raise budget"),
    "a name that is no folder's": ({"methods": ["grpo", {"method": "inspo", "name": "方法"}]}, "name is '方法'; expected one with a letter a-z or a digit"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, case: str) -> None:
    changes, message = WRONG[case]
    file = suite_file(tmp_path, **changes)
    with raises_line(match=message):
        cells_of(*load_suite(file))


def test_a_key_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    key = "sk-proj-secret123456"
    file = suite_file(tmp_path, set={"llm": {"kind": "openai", "model": "m", "key": key}})
    with pytest.raises(ConfigError) as error:
        cells_of(*load_suite(file))
    assert key not in str(error.value)
