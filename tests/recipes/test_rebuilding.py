"""A recipe replaces only a model's folder."""

import argparse
from pathlib import Path

import pytest

from recipes.rebuilding import check_replaceable


def test_a_folder_of_something_else_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser(prog="recipe")
    check_replaceable(tmp_path / "none", parser)
    check_replaceable(tmp_path, parser)  # empty
    (tmp_path / "runs").mkdir()
    for path in (tmp_path, Path(__file__)):
        with pytest.raises(SystemExit) as stopped:
            check_replaceable(path, parser)
        assert stopped.value.code == 2
        assert "is no model's folder" in capsys.readouterr().err
    (tmp_path / "config.json").touch()
    check_replaceable(tmp_path, parser)
