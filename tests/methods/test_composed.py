import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.methods.composed import ComposedOptions, InspoP2O
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.method import Context
from cotune.methods.p2o.hints import HintOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.types import Assignment, Distillation, Progress, Prompt, Trajectory
from cotune_lab.worlds.geo_rules import REMEDIES, Mode
from tests.helpers import INITIAL, Events, ScriptedRollout, make_tasks, rules_llm

TASKS = make_tasks(24)
GROUP = 4
HINTS = HintOptions(hard_set_min_count=4, dev_size=8, budget=80, beam=3)
DECOMPOSING = {*REMEDIES[Mode.WHOLE_QUESTION], *REMEDIES[Mode.ONE_SEARCH]}


class Policy:
    """Works where instruction or hint tells it to look up one thing at a time."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Assignment]]] = []
        self._script = ScriptedRollout(
            lambda text: 0.9 if any(sentence in text for sentence in DECOMPOSING) else 0.1
        )

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        self.calls.append((purpose, list(assignments)))
        joined = [
            replace(a, sampled=Prompt(f"{a.sampled.hint} {a.sampled.instruction}"))
            for a in assignments
        ]
        made = self._script(joined, purpose=purpose, greedy=greedy)
        return [replace(t, assignment=a) for t, a in zip(made, assignments, strict=True)]


def options(groups: Any = "own", target: Any = "sampled", **p2o: Any) -> ComposedOptions:
    inspo = InspoOptions(
        population_size=3,
        verification_tasks=4,
        prune_every=0,
        evolve_every=2,
        groups=groups,
        target=target,
    )
    return ComposedOptions(inspo=inspo, p2o=P2OOptions(**{"hints": HINTS, **p2o}))


def strategy(**changes: Any) -> InspoP2O:
    return InspoP2O(options(**changes), Context(instruction=INITIAL, tasks=TASKS, seed=1))


class Run:
    """A composed strategy in the loop; an epoch is two steps of half the questions each."""

    def __init__(self, made: InspoP2O) -> None:
        self.strategy, self.policy, self.events = made, Policy(), Events()
        self.llm = rules_llm(0)

    def steps(self, steps: Sequence[int]) -> list[Assignment]:
        """The assignments of the last one."""
        assignments: list[Assignment] = []
        for step in steps:
            progress = Progress(step, (step - 1) // 2, 20)
            self.strategy.evolve_if_due(progress, self.policy, self.llm, self.events)
            tasks = TASKS[:12] if step % 2 else TASKS[12:]
            assignments = self.strategy.assign(tasks, GROUP, progress)
            trajectories = self.policy(assignments, purpose="train")
            self.strategy.observe(trajectories, progress, self.events)
        return assignments


def by_group(assignments: Sequence[Assignment]) -> list[list[Assignment]]:
    groups: defaultdict[int, list[Assignment]] = defaultdict(list)
    for a in assignments:
        groups[a.group].append(a)
    return [groups[g] for g in sorted(groups)]


# ---- both methods at once


def test_instructions_of_the_population_and_hints_on_hard_questions():
    run = Run(strategy())
    first = run.steps([1])
    assert {a.sampled.hint for a in first} == {""}
    assert len({a.instruction_id for a in first}) == 3
    third = run.steps([2, 3])
    texts = {i.id: i.text for i in run.strategy.base._lineage}  # type: ignore[attr-defined]
    assert all(a.sampled.instruction == texts[a.instruction_id] for a in third)
    hinted = [a for a in third if a.sampled.hint]
    assert hinted
    # The gradient is on instruction and question, without the hint.
    assert all(a.trained == Prompt(a.sampled.instruction) for a in third)
    assert {purpose for purpose, _ in run.policy.calls} == {"train", "verify", "evolve"}
    assert run.events.of("hint_accepted")
    assert run.events.of("evolution")


def test_hints_are_evolved_under_the_best_instruction_after_its_own_evolution():
    run = Run(strategy())
    run.steps([1, 2])
    progress = Progress(3, 1, 20)
    metrics = run.strategy.evolve_if_due(progress, run.policy, run.llm, run.events)
    assert {"inspo/evolution_accepted", "p2o/hard"} <= set(metrics)
    purposes = [purpose for purpose, _ in run.policy.calls]
    assert purposes.index("evolve") > max(i for i, p in enumerate(purposes) if p == "verify")
    judged = {a.sampled.instruction for p, rows in run.policy.calls if p == "evolve" for a in rows}
    best = run.strategy.best_prompt()
    assert judged == {best.instruction}
    assert best.hint == ""
    born = {row["id"]: row for row in run.events.of("instruction_born")}
    assert born[run.strategy.best_instruction_id()]["text"] == best.instruction


def test_verification_of_the_same_step_is_no_longer_left_for_hints():
    def at_the_epochs_end(left: int) -> Run:
        run = Run(strategy())
        run.steps([1, 2])
        run.policy.calls.clear()
        run.strategy.evolve_if_due(Progress(3, 1, 20, left), run.policy, run.llm, run.events)
        return run

    def rollouts(run: Run, purpose: str) -> int:
        return sum(len(rows) for name, rows in run.policy.calls if name == purpose)

    verified = rollouts(at_the_epochs_end(10_000), "verify")
    assert verified > 0
    enough = verified + 12 * GROUP + (HINTS.budget or 0)  # and the batch that follows
    paid, skipped = at_the_epochs_end(enough), at_the_epochs_end(enough - 1)
    assert rollouts(paid, "evolve") > 0
    assert (rollouts(skipped, "verify"), rollouts(skipped, "evolve")) == (verified, 0)
    assert "more than the 79 that rollout_budget leaves" in skipped.events.of("notice")[-1]["text"]


# ---- mixed groups, one target


def test_hints_go_to_the_drawn_half_of_a_mixed_group():
    run = Run(strategy(groups="mixed", target="initial"))
    groups = by_group(run.steps([1, 2, 3]))
    hinted = [group for group in groups if any(a.sampled.hint for a in group)]
    assert hinted
    for group in hinted:
        assert [bool(a.sampled.hint) for a in group] == [True, True, False, False]
        assert {a.trained for a in group} == {Prompt(INITIAL)}


# ---- state, limits, options


def test_a_state_saved_in_mid_epoch_continues_the_same():
    run = Run(strategy(groups="mixed", target="initial"))
    run.steps([1, 2, 3])
    saved = json.dumps(run.strategy.state_dict())
    copy = Run(strategy(groups="mixed", target="initial"))
    copy.strategy.load_state_dict(json.loads(saved))
    assert json.dumps(copy.strategy.state_dict()) == saved
    for step in (4, 5):
        assert copy.steps([step]) == run.steps([step])
    assert copy.strategy.state_dict() == run.strategy.state_dict()


def test_limits_hold_for_instructions_and_hints():
    def count_tokens(text: str) -> int:
        return 60 if "hop" in text else 1

    context = Context(
        instruction=INITIAL,
        tasks=TASKS,
        seed=1,
        count_tokens=count_tokens,
        max_tokens=50,
        control_tokens=("Never", "single name"),
    )
    run = Run(InspoP2O(options(), context))
    run.steps(range(1, 6))
    for kind in ("instruction_rejected", "hint_rejected"):
        reasons = {row["reason"] for row in run.events.of(kind)}
        assert "60 tokens; 50 allowed" in reasons
        held = {
            f"holds {token}, which only the chat template may" for token in context.control_tokens
        }
        assert held & reasons
    state = run.strategy.state_dict()
    kept = [m["instruction"]["text"] for m in state["base"]["population"]["members"]]
    kept += [row["text"] for row in run.events.of("hint_accepted")]
    assert not any("hop" in text or "Never" in text for text in kept)


def test_whose_distillation_weights_the_rollouts():
    read = TypeAdapter(ComposedOptions).validate_python
    signed, plain = Distillation(ratio="masked_signed"), Distillation()
    assert read({}).distillation == plain
    hinted = read({"p2o": {"distillation": {"ratio": "masked_signed"}}})
    assert hinted.distillation == signed
    mixed = {"groups": "mixed", "target": "initial"}
    assert read({"inspo": mixed}).distillation == signed
    unmasked = read({"inspo": mixed | {"distillation": {"ratio": "original"}}})
    assert unmasked.distillation == plain
    assert InspoP2O(unmasked, Context(instruction=INITIAL)).distillation == plain


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"inspo": {"target": "initial"}, "p2o": {"distillation": {"low": 0.1}}}, "p2o.distillation is set, but with inspo.target 'initial'"),
        ({"inspo": {"distil_steps": 3, "target": "sampled"}}, "inspo.distil_steps is 3; expected 0"),
        ({"inspo": {"windw": 3}}, "inspo.windw"),
    ],
)  # fmt: skip
def test_options_refuse_what_cannot_work(raw: dict[str, Any], message: str):
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ComposedOptions).validate_python(raw)
    assert message in str(caught.value)
