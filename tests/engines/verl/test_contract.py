"""veRL does with a script what the reference loop does with it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from tests.engines.contract.checks import check_that_it_tells
from tests.engines.contract.loop_driver import LoopDriver
from tests.engines.contract.recording import Recording, Row, differences
from tests.engines.contract.script import Rule, Script, script
from tests.engines.verl import scripted
from tests.engines.verl.cpu.rollout import RESPOND
from tests.engines.verl.cpu.settings import environment, overrides
from tests.engines.verl.runs import cotune

pytestmark = pytest.mark.verl

UNASKED = Rule((), (("<answer> nothing </answer>",),))
"""What the policy says to the questions of the test split, which no script has."""


@dataclass(frozen=True)
class VerlDriver:
    """`cotune train` with training.engine verl."""

    folder: Path
    lora: bool = False

    def run(self, script: Script) -> Recording:
        script = replace(script, policy=(*script.policy, UNASKED))
        seeded = {"actor_rollout_ref.rollout.full_determinism": True}
        keys = {f"++{name}": value for name, value in (overrides() | seeded).items()}
        config = script.config(self.folder / "run", engine="verl", save_every=0, engine_args=keys)
        path, script_path = self.folder / "run.yaml", self.folder / "script.json"
        values = config.model_dump(mode="json")
        values["policy"]["lora"] = {} if self.lora else None
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        script_path.write_text(script.to_json(), encoding="utf-8")
        lines, updates = self.folder / "verl.jsonl", self.folder / "updates.jsonl"
        modules = environment()["VERL_USE_EXTERNAL_MODULES"]
        variables = {
            "VERL_USE_EXTERNAL_MODULES": f"{modules},{scripted.__name__}",
            RESPOND: f"{scripted.__name__}:respond",
            scripted.SCRIPT: str(script_path),
            scripted.LINES: str(lines),
            scripted.UPDATES: str(updates),
        }
        cotune("train", path, variables=variables)
        steps = [json.loads(line) for line in updates.read_text(encoding="utf-8").splitlines()]
        run = Recording.read(lines)
        trajectories = [step["trajectories"] for step in run.steps]
        return Recording(
            run.steps,
            [
                [_weighed(*pair) for pair in zip(step, rollouts, strict=True)]
                for step, rollouts in zip(steps, trajectories, strict=True)
            ],
        )


def _weighed(row: Row, trajectory: Row) -> Row:
    """A row of an update as the other engines have it.

    veRL's mask compares what the server says of each token with what the trainer does, of rollouts
    without a hint as well; there the two agree when a policy writes, but not when a script does.
    """
    counted = row.pop("kept")
    if trajectory["prompt_ids"] == trajectory["sampled_prompt_ids"]:
        return row | {"advantages": [max(row["advantages"], key=abs)] * len(counted)}
    weighed = [a * k for a, k in zip(row["advantages"], counted, strict=True)]
    return row | {"advantages": weighed}


SLOW = [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (("population", False), ("fst", False), ("mixed", True))
]


@pytest.mark.parametrize(("kind", "lora"), [("p2o", False), *SLOW])
def test_verl_does_what_the_loop_does(kind: str, lora: bool, tmp_path: Path) -> None:
    scenario = script(kind)
    loop = LoopDriver(tmp_path).run(scenario)
    check_that_it_tells(kind, scenario, loop)
    verl = VerlDriver(tmp_path, lora).run(scenario)
    assert differences(loop, replace(verl, updates=None)) == []
    assert differences(*(Recording([], run.updates) for run in (loop, verl))) == []
