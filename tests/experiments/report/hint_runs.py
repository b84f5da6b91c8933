"""Phases of hint evolution, by a scripted policy and reflector, written into run folders."""

from dataclasses import replace
from typing import Any

from cotune.methods.contract import TextRules
from cotune.methods.method import Evolution
from cotune.methods.p2o.hints import HintPool, HintSearch
from cotune.methods.proposals import ProposalAccount
from cotune.methods.text_evolution import FENCED
from cotune.protocols import LLM
from cotune.run.run_dir import RunDir
from cotune.types import Progress
from tests.methods.p2o.hint_fakes import SMALL, Policy, tasks_of_two_kinds


def phase(
    run: RunDir, step: int, policy: Policy, llm: LLM, number: int = 1, **changes: Any
) -> HintPool:
    """Record a phase before a step's rollouts."""

    def record(kind: str, /, **fields: object) -> None:
        run.event(kind, step, **fields)

    now = Evolution(Progress(step, 0, 99), policy, llm, record)
    account = ProposalAccount("hint", FENCED)
    options = replace(SMALL, **changes)
    hard = tasks_of_two_kinds(20)
    key = f"test/{step}"
    search = HintSearch(hard, options, "Solve it.", "", key, now, account, TextRules())
    return search.run(number)
