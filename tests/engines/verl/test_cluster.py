"""Runs on a Ray cluster that is there already: what is refused before anything is written."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from cotune.config.run_file import parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.verl.cluster import check_copy, on_cluster
from cotune.engines.verl.run import prepare
from cotune.errors import ConfigError
from tests.engines.verl.runs import GEO


def ray_init(**given: Any) -> Any:
    """As in veRL's configuration, which refuses keys that it does not list."""
    found = OmegaConf.create({"num_cpus": None} | given)
    OmegaConf.set_struct(found, True)
    return found


@pytest.mark.parametrize(
    ("variable", "address", "joins"),
    [
        (None, None, False),
        ("10.0.0.1:6379", None, True),
        (None, "10.0.0.1:6379", True),
        ("local", None, False),
        ("10.0.0.1:6379", "local", False),  # what the run file says wins, as in Ray
    ],
)
def test_a_run_joins_the_cluster_that_is_named(
    variable: str | None, address: str | None, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    given = ray_init() if address is None else ray_init(address=address)
    assert on_cluster(given) is joins


def test_a_job_does_not_write_into_rays_copy_of_what_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_7a466fe53d68eb8f"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    check_copy(tmp_path / "runs" / "mine")
    config = parse_config(
        GEO | {"name": "job", "output": "runs/mine", "training": {"engine": "verl"}}, "the test"
    )
    with pytest.raises(ConfigError, match="output: runs/mine lies in the copy that Ray made"):
        prepare(Preflight(config), config.output / "checkpoints")
    assert list(copy.iterdir()) == []
