"""Every suite of the lab: its run files are valid, and a dry run shows its rows."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cotune.cli.app import app

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "lab/suites").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_suite_is_dry_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["compare", str(file), "--dry-run"])
    assert done.exit_code == 0, done.exception
    assert f"{file.stem}: " in done.output
