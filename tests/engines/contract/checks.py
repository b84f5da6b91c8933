"""That a script brings about what it is meant to."""

import math

from tests.engines.contract.recording import Recording
from tests.engines.contract.script import ONE_AT_A_TIME, PLAN, Script


def check_that_it_tells(kind: str, script: Script, run: Recording) -> None:
    """What the script is meant to bring about came about: equality of nothing would be no evidence."""
    assert [row["progress"]["epoch"] for row in run.steps] == [0, 0, 1, 1, 2]
    rows = script.questions * script.group_size
    assert [len(row["assignments"]) for row in run.steps] == [rows] * script.steps
    rewards = [t["reward"] for row in run.steps for t in row["trajectories"]]
    assert 0.1 < sum(rewards) / len(rewards) < 0.9
    assert run.updates is not None
    updated = [row for step in run.updates for row in step]
    assert any(0 in row["mask"][:-1] for row in updated)  # with observations
    assert any(row["advantages"][0] for row in updated)
    events = [kind for row in run.steps for kind, _ in row["events"]]
    last = run.steps[-1]
    instructions = {a["sampled"]["instruction"] for row in run.steps for a in row["assignments"]}
    hints = {a["sampled"]["hint"] for row in run.steps for a in row["assignments"]}
    if script.strategy["kind"] == "inspo":
        assert len(instructions) > 3
        assert ONE_AT_A_TIME in last["best"]["instruction"]
        assert {"instruction_rejected", "instruction_pruned", "evolution"} <= set(events)
        assert [call["purpose"] for row in run.steps for call in row["rollouts"]].count("verify")
    elif script.strategy["kind"] == "fst":
        assert {"gepa_phase_ended", "instruction_born"} <= set(events)
        by_group = [(n, a["group"]) for n, row in enumerate(run.steps) for a in row["assignments"]]
        under = [a["sampled"]["instruction"] for row in run.steps for a in row["assignments"]]
        assert any(
            len({u for g, u in zip(by_group, under, strict=True) if g == group}) > 1
            for group in by_group
        )
    else:
        assert len(instructions) == 1
    if script.strategy["kind"] == "p2o":
        assert any(PLAN in hint for hint in hints)
        assert events.count("hint_phase_ended") == 2
        weighed = [row["advantages"] for row in updated]
        # Some tokens are left out: a negative advantage times 0.
        assert any(x == 0 and math.copysign(1, x) < 0 for a in weighed for x in a)
    else:
        assert hints == {""}
