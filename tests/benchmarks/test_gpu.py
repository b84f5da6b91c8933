"""The GPU benchmark, on a CPU at a tiny size, and where there is no GPU."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs.sources import DOCS, ROOT


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu")


def given(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])


def test_without_a_gpu_it_says_so(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given(monkeypatch)
    gpu.main()
    said = capsys.readouterr()
    assert said.out.startswith("no GPU: nothing was measured")
    assert (said.out.count("\n"), said.err) == (1, "")


@pytest.mark.parametrize(
    "arguments", [("--steps", "1"), ("--micro-batch", "3"), ("--group-size", "1")]
)
def test_sizes_that_measure_nothing_are_refused(
    arguments: tuple[str, ...], gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, "--device", "cpu", *arguments)
    with pytest.raises(SystemExit) as refused:
        gpu.main()
    assert refused.value.code == 2


@pytest.mark.slow
def test_the_same_code_on_a_cpu(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "gpu.md"
    given(monkeypatch, "--device", "cpu", "--tiny", "--fit-seconds", "1", "--output", str(out))
    gpu.main()
    text = out.read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert re.search(r"no GPU; \d+ CPU cores; Python 3.*torch 2", text)
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| tiny")]
    assert [row[2].strip() for row in rows] == ["cached", "generate"]
    for row in rows:
        assert all(int(row[i].replace(",", "")) > 0 for i in (3, 4))
    assert "Memory of a GPU, projected" in text
    assert "Measured, in seconds" in text
    (fitted,) = re.findall(r"\| ([\d.]+) to ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text)
    assert 0 < float(fitted[1]) < 9
    assert all(0 <= float(score) <= 1 for score in fitted[2:])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["gpu.py", "transfer.py"])
def test_scripts_find_the_recipes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, "--help"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


def test_every_script_is_on_the_page() -> None:
    page = (DOCS / "results" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = {
        path.name
        for path in (ROOT / "benchmarks").glob("*.py")
        if "__main__" in path.read_text(encoding="utf-8")
    }
    assert scripts
    assert set(re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE)) == scripts
