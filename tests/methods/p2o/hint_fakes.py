"""A scripted policy, a scripted reflector and a phase of hint evolution around them."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cotune.methods.contract import TextRules
from cotune.methods.method import Evolution
from cotune.methods.p2o.hints import HintOptions, HintPool, HintSearch
from cotune.methods.proposals import ProposalAccount
from cotune.methods.text_evolution import read_fenced
from cotune.protocols import LLM, Recorder
from cotune.types import Assignment, Progress, Task, Trajectory
from tests.helpers import Events, make_trajectory
from tests.scripted import Author

SMALL = HintOptions(hard_set_min_count=4, dev_size=8, budget=150, beam=4)
KEYWORDS = {"sum": "columns", "unit": "conversion"}


def tasks_of_two_kinds(count: int) -> list[Task]:
    """Half of them are solved under a hint that names columns, half under one on conversion."""
    kinds = list(KEYWORDS)
    return [
        Task(f"q{i}", f"Problem {i} of kind {kinds[i % 2]}?", (f"secret{i}",), kinds[i % 2])
        for i in range(count)
    ]


def by_keyword(task: Task, hint: str) -> bool:
    return KEYWORDS[task.stratum] in hint


@dataclass
class Policy:
    """A rollout whose success depends on question and hint; keeps what it was asked."""

    solves: Callable[[Task, str], bool] = by_keyword
    calls: list[list[Assignment]] = field(default_factory=list[list[Assignment]])

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        assert purpose == "evolve"
        assert greedy
        self.calls.append(list(assignments))
        return [self._rollout(a) for a in assignments]

    def _rollout(self, assignment: Assignment) -> Trajectory:
        right = self.solves(assignment.task, assignment.sampled.hint)
        answer = assignment.task.answers[0] if right else "nothing"
        trajectory = make_trajectory(assignment, float(right), f"I say {answer}")
        return replace(trajectory, answer=answer)

    @property
    def evaluations(self) -> int:
        return sum(map(len, self.calls))


def fresh_hint(n: int, keyword: str) -> str:
    return f"Here is why:\n```\nMind the {keyword}: alpha{n}x, beta{n}x and gamma{n}x.\n```"


def one_keyword_each(n: int, prompt: str) -> str:
    return fresh_hint(n, list(KEYWORDS.values())[n % 2])


def leaking(n: int, prompt: str) -> str:
    """A hint with the answer of a question in the prompt."""
    match = re.search(r"Problem (\d+) of kind", prompt)
    assert match
    return f"```\nAlways say secret{match[1]}!\n```"


def evolve(
    policy: Policy, llm: LLM, record: Recorder | None = None, count: int = 20, **changes: Any
) -> tuple[HintPool, HintSearch]:
    options = replace(SMALL, **changes)
    evolution = Evolution(Progress(1, 0, 9), policy, llm, record or Events())
    account = ProposalAccount("hint", read_fenced)
    hard = tasks_of_two_kinds(count)
    search = HintSearch(hard, options, "Solve it.", "", "test", evolution, account, TextRules())
    return search.run(1), search


def one_phase() -> str:
    """Return everything that a phase asked for and brought, as JSON."""
    policy, author, record = Policy(), Author(one_keyword_each), Events()
    pool, _ = evolve(policy, author, record)
    calls = [[(a.task.id, a.sampled.hint) for a in call] for call in policy.calls]
    return json.dumps([calls, author.prompts, record.rows, asdict(pool)])
