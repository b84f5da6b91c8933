"""Proposals that are asked for while the policy trains: the run is the one that would have waited."""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cotune.errors import BudgetError, ConfigError, EvolutionError, LLMError
from cotune.llm.client import MeteredLLM
from cotune.methods.inspo.inspo import Inspo
from cotune.protocols import LLM, State
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from cotune.testing import CharacterCodec, ScriptedSampler
from cotune.types import Assignment, Completion, Progress, Sampling, Trajectory
from cotune.worlds.rules_llm import RulesLLM
from tests.helpers import WAITING, ScriptedRollout
from tests.methods.inspo.test_inspo import TASKS, chance, inspo
from tests.rollout.test_coordinator import Yes

SECONDS = 30  # until a test that hangs fails
STEPS = 9  # evolutions before steps 1, 5 and 9


class Endpoint:
    """The rules behind a network: they answer when the test lets them.

    Attributes:
        open: set while calls are answered.
        waiting: prompts of calls that are under way.
        failing: raised in place of a reply.
    """

    def __init__(self, at_once: int = 4) -> None:
        self.at_once, self._rules = at_once, RulesLLM(3)
        self.open = threading.Event()
        self.failing: Exception | None = None
        self.asked, self.waiting = list[str](), set[str]()
        self._changed = threading.Condition()

    def complete(self, prompt: str) -> Completion:
        with self._changed:
            self.asked.append(prompt)
            self.waiting.add(prompt)
            self._changed.notify_all()
        assert self.open.wait(SECONDS)
        with self._changed:
            self.waiting.remove(prompt)
            self._changed.notify_all()
        if self.failing is not None:
            raise self.failing
        return self._rules.complete(prompt)

    def until(self, calls: int) -> None:
        """Wait until so many calls are under way."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.waiting) == calls, SECONDS)


class Life:
    """An INSPO run around a policy of luck, in a run folder."""

    def __init__(self, folder: Path, llm: Any, strategy: Inspo, state: State | None = None) -> None:
        resumed = state is not None
        self.run = RunDir.open(folder) if resumed else RunDir.create(folder, {})
        self.ledger = Ledger(self.run.ledger_path)
        self.ledger.begin_attempt(state["step"] if resumed else None)
        if resumed:
            self.run.cut_back(state["step"])
        policy = ScriptedRollout(chance)

        def roll_out(
            assignments: Sequence[Assignment], first: int, sampling: Sampling
        ) -> list[Trajectory]:
            return policy(assignments, purpose=str(sampling.seed))

        metered: LLM = MeteredLLM(llm, self.ledger, "m")
        self.coordinator = Coordinator(
            strategy=strategy,
            environment=Yes(),
            codec=CharacterCodec(),
            sampler=ScriptedSampler(CharacterCodec(), ["x"]),
            llm=metered,
            journal=self.run,
            meter=self.ledger,
            settings=RolloutSettings(seed=5),
            roll_out=roll_out,
        )
        if resumed:
            self.coordinator.load_state_dict(state)
        self.metrics: list[dict[str, float]] = []

    def evolve(self, step: int) -> dict[str, float]:
        return self.coordinator.evolve(Progress(step, 0, STEPS))

    def finish_step(self, step: int, evolved: dict[str, float]) -> None:
        coordinator, progress = self.coordinator, Progress(step, 0, STEPS)
        trajectories = coordinator.rollout(coordinator.assign(TASKS, 3, progress))
        row = evolved | coordinator.observe(trajectories, 3, progress)
        self.metrics.append({k: v for k, v in row.items() if k not in WAITING})

    def learnt(self) -> list[dict[str, Any]]:
        own = [row for row in self.run.read_events() if row["kind"] not in ("saved", "cut_back")]
        return [{k: v for k, v in row.items() if k not in ("time", "attempt")} for row in own]

    def spent(self) -> Counter[tuple[Any, ...]]:
        """What is committed; calls are entered in no order."""
        return Counter(
            (row.step, row.kind, row.rollouts, row.state)
            for row in self.ledger.rows()
            if row.committed
        )


def slow(folder: Path, at_once: int = 4, kill_after: int = 0, **changes: Any) -> Life:
    """A run whose calls are answered once the step is there where their answers are due.

    Args:
        kill_after: the step after which the process is killed and resumed.
    """
    endpoint = Endpoint(at_once)
    life, metrics = Life(folder, endpoint, inspo(**changes)), list[dict[str, float]]()
    for step in range(1, STEPS + 1):
        endpoint.open.set()
        evolved = life.evolve(step)
        endpoint.until(0)
        endpoint.open.clear()
        life.finish_step(step, evolved)
        metrics.append(life.metrics[-1])
        if step == kill_after:
            life.run.event("saved", step)
            state = json.loads(json.dumps(life.coordinator.state_dict()))
            endpoint.until(min(at_once, changes.get("proposals_at_once", 2)))  # in flight
            lost, endpoint = endpoint, Endpoint(at_once)
            life = Life(folder, endpoint, inspo(**changes), state)
            assert lost.waiting
    endpoint.open.set()
    life.coordinator.finish_calls()
    life.metrics = metrics
    return life


def fast(folder: Path, at_once: int = 4, **changes: Any) -> Life:
    """A run whose calls are answered before the policy has begun to train."""
    endpoint = Endpoint(at_once)
    endpoint.open.set()
    life = Life(folder, endpoint, inspo(**changes))
    for step in range(1, STEPS + 1):
        life.finish_step(step, life.evolve(step))
        endpoint.until(0)
    life.coordinator.finish_calls()
    return life


PROPOSERS = pytest.mark.parametrize(
    "proposer", ["reflection", "paraphrase", "history", "crossover"]
)


@PROPOSERS
@pytest.mark.parametrize("proposals_at_once", [1, 2, 5])
def test_a_run_does_not_depend_on_how_fast_the_endpoint_is(
    tmp_path: Path, proposer: str, proposals_at_once: int
) -> None:
    given = {"proposer": proposer, "proposals_at_once": proposals_at_once, "candidates": 2}
    runs = [slow(tmp_path / "slow", **given), fast(tmp_path / "fast", **given)]
    # An LLM that is asked when the answer is due, as any was before.
    waits = fast(tmp_path / "waits", at_once=0, **given)
    one, two = runs
    born = [row for row in one.learnt() if row["kind"] == "instruction_born"]
    assert any(row["born"] > 1 for row in born)  # something was accepted
    assert one.learnt() == two.learnt() == waits.learnt()
    assert one.metrics == two.metrics == waits.metrics
    assert one.coordinator.state_dict() == two.coordinator.state_dict()
    assert one.spent() == two.spent()
    if proposals_at_once == 1:
        assert one.spent() == waits.spent()  # and nothing more is paid


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("kill_after", [4, 8])
def test_a_run_killed_with_calls_in_flight_goes_on_as_if_it_had_not_been(
    tmp_path: Path, at_once: int, kill_after: int
) -> None:
    whole = slow(tmp_path / "whole", at_once)
    killed = slow(tmp_path / "killed", at_once, kill_after)
    assert killed.learnt() == whole.learnt()
    assert killed.metrics == whole.metrics
    assert killed.coordinator.state_dict() == whole.coordinator.state_dict()
    assert killed.spent() == whole.spent()
    lost = [row for row in killed.ledger.rows() if not row.committed]
    assert {(row.step, row.kind, row.state) for row in lost} == {(kill_after + 1, "llm", "open")}


def test_what_the_failures_ask_for_is_asked_while_the_policy_trains(tmp_path: Path) -> None:
    endpoint = Endpoint()
    life = Life(tmp_path / "run", endpoint, inspo())
    endpoint.open.set()
    for step in range(1, 5):
        evolved = life.evolve(step)
        life.coordinator.finish_calls()  # a reply that was not needed may still be under way
        asked = len(endpoint.asked)
        endpoint.open.clear()
        life.finish_step(step, evolved)
        assert step == 4 or len(endpoint.asked) == asked  # nothing is due
    endpoint.until(2)  # the two rounds that are asked about together
    assert all("still gets the following examples wrong" in prompt for prompt in endpoint.waiting)
    rows = [row for row in life.ledger.rows() if row.state == "open"]
    assert [row.step for row in rows] == [5, 5]  # under the step that needs them
    endpoint.open.set()
    found = life.evolve(5)
    assert set(found) >= WAITING
    assert Counter(endpoint.asked).most_common(1)[0][1] == 1  # none is asked twice
    life.coordinator.finish_calls()


def test_nothing_is_asked_after_the_last_step_or_without_rollouts_to_verify_with() -> None:
    strategy = inspo()
    rollout, llm = ScriptedRollout(chance), RulesLLM(3)
    for step in range(1, 5):
        progress = Progress(step, 0, STEPS)
        strategy.evolve_if_due(progress, rollout, llm, lambda kind, **fields: None)
        batch = rollout(strategy.assign(TASKS, 3, progress), purpose="train")
        strategy.observe(batch, progress, lambda kind, **fields: None)
    assert len(strategy.requests(Progress(4, 0, STEPS))) == 2
    assert strategy.requests(Progress(4, 0, total_steps=4)) == []
    assert strategy.requests(Progress(4, 0, STEPS, rollouts_left=2 * 24)) == []
    assert len(strategy.requests(Progress(4, 0, STEPS, rollouts_left=1000))) == 2
    before = json.dumps(strategy.state_dict())
    strategy.requests(Progress(4, 0, STEPS))
    assert json.dumps(strategy.state_dict()) == before


@pytest.mark.parametrize("at_once", [0, 4])
def test_errors_of_a_call_are_those_of_a_call_that_was_waited_for(
    tmp_path: Path, at_once: int
) -> None:
    endpoint = Endpoint(at_once)
    endpoint.open.set()
    life = Life(tmp_path / "run", endpoint, inspo())
    for step in range(1, 5):
        if step == 4:
            endpoint.failing = LLMError("HTTP status 503")
        life.finish_step(step, life.evolve(step))
    life.finish_step(5, life.evolve(5))
    failed = [row for row in life.learnt() if row["kind"] == "proposal_failed"]
    assert failed == [{"step": 5, "kind": "proposal_failed", "reason": "LLMError: HTTP status 503"}]
    for step in range(6, 8):
        life.finish_step(step, life.evolve(step))
    endpoint.failing = BudgetError("spent")
    life.finish_step(8, life.evolve(8))
    life.evolve(9)
    (ended,) = [row for row in life.learnt() if row["kind"] == "proposals_ended"]
    assert (ended["step"], ended["reason"]) == (9, "spent")
    life.coordinator.finish_calls()


@pytest.mark.parametrize("at_once", [0, 4])
def test_errors_that_end_a_run_end_it_where_the_answer_is_due(tmp_path: Path, at_once: int) -> None:
    def until_step_five(folder: Path, failing: Exception) -> Life:
        endpoint = Endpoint(at_once)
        endpoint.open.set()
        life = Life(folder, endpoint, inspo(evolve_every=2, evolve_until=5, prune_every=0))
        for step in range(1, 3):
            if step == 2:
                endpoint.failing = failing
            life.finish_step(step, life.evolve(step))
        return life

    life = until_step_five(tmp_path / "config", ConfigError("llm: returned int"))
    with pytest.raises(ConfigError, match="returned int"):
        life.evolve(3)
    life = until_step_five(tmp_path / "useless", LLMError("HTTP status 401"))
    for step in (3, 4):
        life.finish_step(step, life.evolve(step))
    with pytest.raises(EvolutionError, match="2 phases in a row failed"):
        life.evolve(5)
    life.coordinator.finish_calls()
