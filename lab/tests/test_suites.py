"""Every suite of the lab: its run files are valid, and a dry run shows its rows."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cotune.cli.app import app

ROOT = Path(__file__).parents[2]
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "lab/suites").glob("*.yaml"))
FILES.remove(Path("lab/suites/proof.yaml"))  # its model and its data are on the hub


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_suite_is_dry_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, ["compare", str(file), "--dry-run"])
    assert done.exit_code == 0, done.exception
    assert f"{file.stem}: " in done.output


def test_the_proof_is_dry_run_with_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "lab/results/proof.md").read_text()
    command, _ = re.findall(
        r"^cotune (compare lab/suites/proof\.yaml .*?)\n```", page, re.DOTALL | re.MULTILINE
    )
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, [*shlex.split(command.replace("\\\n", " ")), "--dry-run"])
    assert done.exit_code == 0, done.exception
    assert "runs: 6, of 6 methods" in done.output
