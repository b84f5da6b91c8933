"""Every engine does with a script what the reference loop does with it."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.contract.checks import check_that_it_tells
from tests.engines.contract.loop_driver import LoopDriver
from tests.engines.contract.recording import Recording, differences
from tests.engines.contract.script import STRATEGIES, Script, script
from tests.engines.contract.trl_driver import TRLDriver
from tests.policy.tiny import small_policy


@pytest.mark.parametrize(
    "kind",
    [k if k in ("mixed", "p2o") else pytest.param(k, marks=pytest.mark.slow) for k in STRATEGIES],
)
def test_trl_does_what_the_loop_does(kind: str, tmp_path: Path) -> None:
    told = script(kind)
    loop = LoopDriver(tmp_path, small_policy()).run(told)
    check_that_it_tells(kind, told, loop)
    trl = TRLDriver(tmp_path, small_policy()).run(Script.from_json(told.to_json()))
    assert trl.updates is not None
    assert differences(loop, trl) == []


def hint_into_what_is_trained_on(run: Recording) -> None:
    row = next(a for a in run.steps[-1]["assignments"] if a["sampled"]["hint"])
    row["trained"] = row["sampled"]


def other_credit(run: Recording) -> None:
    member = run.steps[-1]["state"]["population"]["members"][0]
    member["window"][-1] += 0.01


def other_hard_set(run: Recording) -> None:
    run.steps[2]["state"]["hard"] = {}


def lost_event(run: Recording) -> None:
    run.steps[0]["events"].pop()


def observation_in_the_loss(run: Recording) -> None:
    assert run.updates is not None
    row = next(row for row in run.updates[0] if 0 in row["mask"])
    row["mask"] = [1] * len(row["mask"])


def swapped_advantages(run: Recording) -> None:
    assert run.updates is not None
    for row in run.updates[0]:
        row["advantages"] = [-a for a in row["advantages"]]


FAULTS: list[tuple[Callable[[Recording], None], str]] = [
    (hint_into_what_is_trained_on, "p2o"),
    (other_credit, "mixed"),
    (other_hard_set, "p2o"),
    (lost_event, "mixed"),
    (observation_in_the_loss, "p2o"),
    (swapped_advantages, "mixed"),
]


def test_a_fault_of_an_engine_is_found(tmp_path: Path) -> None:
    recorded: dict[str, Recording] = {}
    for kind in ("mixed", "p2o"):
        (tmp_path / kind).mkdir()
        driver = LoopDriver(tmp_path / kind, small_policy())
        recorded[kind] = driver.run(replace(script(kind), steps=3))
    for fault, kind in FAULTS:
        faulty = deepcopy(recorded[kind])
        assert differences(recorded[kind], faulty) == []
        fault(faulty)
        assert differences(recorded[kind], faulty), fault.__name__
