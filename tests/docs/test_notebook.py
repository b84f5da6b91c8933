"""The notebook of the documentation runs from its first cell to its last."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first_run.ipynb"
CELLS = [
    cell
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]


def test_it_is_kept_without_outputs() -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in CELLS)


@pytest.mark.slow
def test_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {}
    outputs: list[str] = []

    async def run_cells() -> None:
        """Run the cells where an event loop runs already, as in a notebook's kernel."""
        for cell in CELLS:
            statements = ast.Interactive(ast.parse("".join(cell["source"])).body)
            exec(compile(statements, "first_run.ipynb", "single"), names)
            outputs.append(capsys.readouterr().out)

    asyncio.run(run_cells())
    assert "boxed" in outputs[1]  # the prompt
    assert "reward_mean" in outputs[3]
    assert "parent_score" in outputs[4]
    assert "i0" in outputs[4]
    assert "task_question" in outputs[6]
