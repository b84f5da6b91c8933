"""Every engine does with a script what the reference loop does with it."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.contract.checks import check_that_it_tells
from tests.engines.contract.loop_driver import LoopDriver
from tests.engines.contract.recording import differences
from tests.engines.contract.script import STRATEGIES, Script, script
from tests.engines.contract.trl_driver import TRLDriver
from tests.policy.tiny import small_policy


@pytest.mark.parametrize(
    "kind",
    [k if k in ("mixed", "p2o") else pytest.param(k, marks=pytest.mark.slow) for k in STRATEGIES],
)
def test_trl_does_what_the_loop_does(kind: str, tmp_path: Path) -> None:
    scenario = script(kind)
    loop = LoopDriver(tmp_path, small_policy()).run(scenario)
    check_that_it_tells(kind, scenario, loop)
    trl = TRLDriver(tmp_path, small_policy()).run(Script.from_json(scenario.to_json()))
    assert trl.updates is not None
    assert differences(loop, trl) == []


def test_a_fault_of_an_engine_is_found(tmp_path: Path) -> None:
    recorded = LoopDriver(tmp_path, small_policy()).run(replace(script("p2o"), steps=3))
    hinted, opposed = deepcopy(recorded), deepcopy(recorded)
    assert differences(recorded, hinted) == []
    row = next(a for a in hinted.steps[-1]["assignments"] if a["sampled"]["hint"])
    row["trained"] = row["sampled"]
    assert differences(recorded, hinted)
    assert opposed.updates is not None
    for row in opposed.updates[0]:
        row["advantages"] = [-a for a in row["advantages"]]
    assert differences(recorded, opposed)
