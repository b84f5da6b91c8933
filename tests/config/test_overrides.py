"""`--set FIELD=VALUE`: how it is read, what it changes, and what an error may repeat."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.overrides import with_overrides
from cotune.config.run_file import load_config
from cotune.errors import ConfigError
from tests.helpers import raises_line
from tests.run_files import tiny, write

KEY = "sk-proj-Zx81kQ"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("seed=7", {"seed": 7, "training": {"steps": 3}}),
        ("training.steps=600", {"seed": 0, "training": {"steps": 600}}),
        ("training.kl = 0.5", {"seed": 0, "training": {"steps": 3, "kl": 0.5}}),
        ("name=a=b", {"seed": 0, "training": {"steps": 3}, "name": "a=b"}),
        ("threads=", {"seed": 0, "training": {"steps": 3}, "threads": None}),
        ("rewards=[a, {function: b}]", {"seed": 0, "training": {"steps": 3},
                                        "rewards": ["a", {"function": "b"}]}),
        ("training={epochs: 1}", {"seed": 0, "training": {"epochs": 1}}),
        ("llm.budget=2", {"seed": 0, "training": {"steps": 3}, "llm": {"budget": 2}}),
    ],
)  # fmt: skip
def test_a_field_is_set_and_sections_are_begun(assignment: str, expected: object) -> None:
    raw: dict[str, Any] = {"seed": 0, "training": {"steps": 3}}
    assert with_overrides(raw, [assignment]) == expected
    assert raw == {"seed": 0, "training": {"steps": 3}}


def test_the_last_assignment_wins_and_null_can_be_begun_anew() -> None:
    raw = {"llm": None}
    assert with_overrides(raw, ["seed=1", "llm.model=m", "seed=2"]) == {
        "llm": {"model": "m"}, "seed": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.steps", "--set training.steps has no '='; expected FIELD=VALUE, as in"),
        ("=3", "--set does not begin with a field"),
        (f"llm.{KEY}=3", "--set does not begin with a field"),
        (f"{KEY}", "--set has no '='"),
        ("training..steps=3", "--set does not begin with a field"),
        (f"llm.api_key_env={{{KEY}", "--set llm.api_key_env: what follows '=' is not YAML"),
        (f"llm.SK{KEY[8:]}={{x", "--set: what follows '=' is not YAML"),
        ("seed.x=1", "--set seed.x: seed holds a value, which has no fields; set seed as a whole"),
        ("name.x=1", "name holds a value"),
        ("rewards.0=1", "rewards holds a value"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_without_the_value(assignment: str, message: str) -> None:
    raw: dict[str, Any] = {"seed": 0, "name": "n", "rewards": []}
    with raises_line(message, match="^(?!.*Zx81)"):
        with_overrides(raw, [assignment])


ENDPOINT = {"llm": {"kind": "openai", "model": "m", "budget": None}}


@pytest.mark.parametrize(
    ("changes", "assignments", "section"),
    [
        (ENDPOINT, ["llm.path=my.txt", "llm.kind=bank"], {"llm": {"kind": "bank", "path": "my.txt"}}),
        (ENDPOINT, ["llm.kind=openai"], {"llm": ENDPOINT["llm"]}),
        ({"strategy": {"kind": "p2o", "hints": {"beam": 2}}}, ["strategy.kind=static"], {"strategy": {"kind": "static"}}),
    ],
)  # fmt: skip
def test_another_kind_drops_the_fields_of_the_files_kind(
    changes: dict[str, Any], assignments: list[str], section: dict[str, Any]
) -> None:
    changed = with_overrides(tiny(Path("out"), changes), assignments)
    assert changed.items() >= section.items()


def test_what_does_not_validate_is_said_as_of_the_file_and_its_overrides(tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    with pytest.raises(ConfigError) as caught:
        load_config(file, assignments=["training.max_steps=6"])
    assert str(caught.value) == (
        f"{file} with --set: training.max_steps: unknown field (did you mean training.steps?); "
        "remove it or correct its name"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file, assignments=["llm.kind=openai", "llm.model=m", "llm.key=mine"])
    assert "llm.key: unknown field" in str(caught.value)
    assert "mine" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"--set: llm\.model: holds a key") as caught:
        load_config(file, assignments=["llm.kind=openai", f"llm.model={KEY}"])
    assert KEY not in str(caught.value)
