"""The notebook of the documentation runs from its first cell to its last."""

from pathlib import Path

import nbformat
import pytest

from tests.forked import run_module

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first_run.ipynb"


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    folder = {"TMPDIR": str(tmp_path)}
    done = run_module("tests.docs.forked_kernel", NOTEBOOK, tmp_path, env=folder)
    assert done.returncode == 0, done.stderr
    notebook = nbformat.reads(done.stdout, as_version=4)
    shown = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert "boxed" in shown[0]  # the prompt
    assert any("reward_mean" in text for text in shown)
    assert any("parent_score" in text and "i0" in text for text in shown)
    assert any("stop" in text and "reward" in text and "question" in text for text in shown)
