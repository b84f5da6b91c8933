"""Runs on a Ray cluster that is there already: what is refused before anything is written."""

from typing import Any

import pytest
from omegaconf import OmegaConf

from cotune.engines.verl.run import joins_cluster


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
    assert joins_cluster(given) is joins
