import re

import pytest
from pydantic import ValidationError

from cotune.environments.single_turn import INITIAL_INSTRUCTION as INITIAL
from cotune.methods.inspo.proposers import read_tagged
from cotune.methods.inspo.replay import Experience
from cotune.types import StopReason, Task
from cotune.worlds.ladder import (
    RUNGS,
    SHARES,
    SPLITS,
    LadderEnvironment,
    LadderOptions,
    Problem,
    after,
    solution,
    split_by_hash,
)
from cotune.worlds.rules_llm import REMEDIES, RulesLLM, lacks
from tests.helpers import paraphrase_prompt, reflection_prompt

MIXED = Problem(RUNGS[4], 59, (6, -8, -9, 8, -7), "What is 59 + 6 - 8 - 9 + 8 - 7?")


def test_a_solution_and_slips_by_hand() -> None:
    assert MIXED.answer == 49
    assert solution(MIXED) == (
        "In order: 59+6: 5 up 65; 65-8: down 7 57; 57-9: down 8 48; 48+8: 6 up 56; 56-7: down 9 49;"
    )
    assert (after(59, 6, True), after(59, 6, False)) == (65, 55)
    assert (after(65, -8, True), after(65, -8, False)) == (57, 63)  # 8 - 5 in place of 15 - 8
    assert (after(73, -24, True), after(73, -24, False)) == (49, 51)
    assert after(61, 7, False) == 68  # nothing to forget


def sum_of(question: str) -> str:
    return " ".join(re.findall(r"[-+]|\d+", question))


def test_splits_are_disjoint_and_mixed_as_said() -> None:
    environment = LadderEnvironment(LadderOptions(train=520))
    tasks = {split: environment.tasks(split) for split in ("train", "validation", "test")}
    for split, rows in tasks.items():
        assert {split_by_hash(sum_of(task.question), SPLITS) for task in rows} == {split}
        assert len({task.question for task in rows}) == len(rows)
    counts = [sum(t.stratum == rung for t in tasks["train"]) for rung in RUNGS]
    assert counts == [520 * share // 26 for share in SHARES]
    assert {t.stratum for t in tasks["test"][:26]} == set(RUNGS)


def test_a_world_of_some_rungs_keeps_their_shares() -> None:
    environment = LadderEnvironment(LadderOptions(train=55, rungs=RUNGS[:3]))
    counts = [sum(t.stratum == rung for t in environment.tasks("train")) for rung in RUNGS]
    assert counts == [20, 10, 25, 0, 0, 0]
    with pytest.raises(ValidationError, match="no carry"):
        LadderOptions.model_validate({"rungs": ["4 carries"]})


# ---- the rules

LACKS = list(REMEDIES)
AT_ONCE = "\\boxed{48}"
GROUPED = "Together: 6+8=14; 59+14: 3 up 73; \\boxed{73}"
SINGLE = "One by one: 59+6: 5 up 65; 65+8: 3 up 73; 8+9+7=24; 73-24: 1 51; \\boxed{51}"


def test_the_rules_read_what_a_failed_response_lacks() -> None:
    assert lacks(AT_ONCE) == LACKS
    assert lacks(GROUPED) == LACKS[1:]
    assert lacks(SINGLE) == [LACKS[0], LACKS[2]]


@pytest.mark.parametrize(("response", "missing"), [(GROUPED, lacks(GROUPED)), (AT_ONCE, LACKS)])
def test_the_rules_answer_a_reflection_with_one_remedy(response: str, missing: list[str]) -> None:
    task = Task("a", MIXED.text, (str(MIXED.answer),))
    failure = Experience("i0", task, response, 0.0, 1, StopReason.ANSWERED)
    parent = f"{INITIAL} {REMEDIES[LACKS[0]][0]}"
    all_fixes = set[str]()
    for seed in range(8):
        reply = RulesLLM(seed).complete(reflection_prompt(parent, [failure], 6)).text
        for candidate in read_tagged(reply)[1]:
            fixes = [lack for lack in REMEDIES if any(s in candidate for s in REMEDIES[lack])]
            assert len(fixes) == 1
            assert INITIAL.split(". ")[1] in candidate
            all_fixes |= set(fixes)
    assert all_fixes == set(missing)


def test_rewrites_remedy_nothing() -> None:
    candidates = read_tagged(RulesLLM(0).complete(paraphrase_prompt(INITIAL, 6)).text)[1]
    assert len(candidates) > 3
    for candidate in candidates:
        assert INITIAL in candidate
        assert not any(s in candidate for options in REMEDIES.values() for s in options)
