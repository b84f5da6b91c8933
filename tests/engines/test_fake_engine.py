"""Adding an engine touches its own package and one line: every command goes by what it implements."""

from pathlib import Path

from tests.forked import run_module

ROOT = Path(__file__).parents[2]


def test_an_engine_goes_through_every_command(tmp_path: Path) -> None:
    # The engine is added before any module of cotune is imported.
    result = run_module("tests.engines.fake_life", tmp_path, anew=("cotune", "cotune_lab"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "done"


def test_no_engine_is_named_outside_the_engines() -> None:
    """A comparison such as `engine == "verl"` belongs behind `cotune.engines.engine.Engine`."""
    source = ROOT / "src" / "cotune"
    for path in source.rglob("*.py"):
        if "engines" in path.parts:
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            compares = "engine" in line and any(mark in line for mark in ("==", "!=", " in ("))
            assert not (compares and any(f'"{name}"' in line for name in ("trl", "verl"))), (
                path,
                line,
            )
