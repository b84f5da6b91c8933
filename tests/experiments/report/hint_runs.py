"""Phases of hint evolution, by a scripted policy and reflector, written into run folders."""

from dataclasses import replace
from typing import Any

from cotune.methods.contract import HintRules
from cotune.methods.p2o.hint_evolution import PhaseResult, evolve_hints
from cotune.methods.proposals import ProposalAccount
from cotune.methods.text_evolution import FENCED
from cotune.protocols import LLM
from cotune.run.run_dir import RunDir
from tests.methods.p2o.hint_fakes import SMALL, Policy, tasks_of_two_kinds


def phase(
    run: RunDir, step: int, policy: Policy, llm: LLM, number: int = 1, **changes: Any
) -> PhaseResult:
    """Record a phase before a step's rollouts."""

    def record(kind: str, /, **fields: object) -> None:
        run.event(kind, step, **fields)

    return evolve_hints(
        tasks_of_two_kinds(20),
        instruction="Solve it.",
        rollout=policy,
        llm=llm,
        account=ProposalAccount("hint", FENCED),
        rules=HintRules(),
        options=replace(SMALL, **changes),
        seed_key=f"test/{step}",
        phase=number,
        record=record,
    )
