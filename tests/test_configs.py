"""The run files that ship are run files."""

from pathlib import Path

import pytest

from cotune.commands import planned_rollouts
from cotune.config import load_config

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_run_file_parses_and_is_planned(file: Path) -> None:
    config = load_config(file)
    assert config.name == file.stem
    assert config.output == Path("runs") / file.stem
    assert planned_rollouts(config)["train"] > 0


def test_there_are_some() -> None:
    assert {file.stem for file in FILES} >= {"geo-inspo", "geo-static"}
