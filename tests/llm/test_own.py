"""An LLM that the user brings."""

import os
from pathlib import Path
from unittest import mock

import pytest

from cotune.cli.library_settings import quiet_libraries
from cotune.config.run_file import parse_config
from cotune.errors import ConfigError
from cotune.llm.own import OwnLLMOptions, own_llm
from tests.run_files import tiny

CODE = """
class Mine:
    def complete(self, prompt):
        return prompt.upper()

class Needy(Mine):
    def __init__(self, key):
        ...

one = Mine()
number = 3

def complete(prompt):
    return prompt
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def named(name: str) -> OwnLLMOptions:
    return OwnLLMOptions(object=f"mine.py:{name}")


def test_a_class_is_made_and_an_object_is_used() -> None:
    assert own_llm(named("Mine")).complete("a") == "A"
    assert own_llm(named("Mine")) is not own_llm(named("Mine"))
    assert own_llm(named("one")) is own_llm(named("one"))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("Needy", r"mine.py:Needy\(\) raised TypeError: .*'key'.*without required arguments"),
        ("number", r"mine.py:number is of int, which has no complete\(prompt\)"),
        ("complete", "is of function, which has no complete"),
        ("Mime", "did you mean Mine"),
    ],
)
def test_what_is_no_llm_is_refused(name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        own_llm(named(name))
    assert str(caught.value).startswith("llm.object: ")


@pytest.mark.parametrize("given", ["sk-secret", "a b:c", "sk:", ":x"])
def test_what_may_be_a_key_is_not_shown(given: str) -> None:
    with pytest.raises(ValueError, match=r"package\.module:name") as caught:
        OwnLLMOptions(object=given)
    assert given not in str(caught.value)


@pytest.mark.parametrize(("llm", "offline"), [
    (None, "1"), ("mine.py:Mine", None)
])  # fmt: skip
def test_its_code_may_use_the_hub(tmp_path: Path, llm: object, offline: str | None) -> None:
    config = parse_config(tiny(tmp_path / "out", {"llm": llm}), "test")
    with mock.patch.dict(os.environ):
        os.environ.pop("HF_HUB_OFFLINE", None)
        quiet_libraries(config)
        assert os.environ.get("HF_HUB_OFFLINE") == offline
