"""Upper bounds of what a run spends, worked by hand."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.cost import plan_run, split_sizes
from cotune.config.run_file import RunConfig, parse_config
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.method import RunShape
from cotune.methods.registry import method_of
from tests.run_files import config_of, tiny

P2O = {"kind": "p2o", "hints": {"hard_set_min_count": 2, "dev_size": 3, "budget": 20, "beam": 2}}


ONE, TWO, THREE = ({"population_size": size} for size in (1, 2, 3))
VALIDATED = {"every": 2, "before": False}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 3 steps × 4 questions × 2; one evolution (after step 2) × 1 round × 2 tasks × (6 + parent);
        # test of 6 before, after and under the initial instruction.
        ({}, {"train": 24, "verify": 14, "evaluate": 18, "calls": 2}),
        ({"training": {"rollout_budget": 17}}, {"train": 17}),
        ({"strategy": {"verification": "none"}}, {"verify": None}),
        ({"strategy": {"kind": "static"}}, {"verify": None, "calls": 0}),
        ({"strategy": {"verification_rounds": 5}}, {"calls": 2 * 5}),
        # Validation of 3 after steps 2 and, at the end, 3; no test before. At the end two more
        # instructions, of a population of three or more.
        ({"strategy": ONE, "evaluation": VALIDATED}, {"evaluate": 2 * 3 + 2 * 6}),
        ({"strategy": TWO, "evaluation": VALIDATED}, {"evaluate": (2 + 1) * 3 + 2 * 6}),
        ({"strategy": THREE, "evaluation": VALIDATED}, {"evaluate": (2 + 2) * 3 + 2 * 6}),
        # With mixed groups, under the initial instruction, too.
        ({"strategy": {**ONE, "groups": "mixed"}, "evaluation": VALIDATED}, {"evaluate": 2 * 2 * 3 + 2 * 6}),
    ],
)  # fmt: skip
def test_rollouts_and_calls_of_a_plan(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    plan = plan_run(config_of(**changes))
    numbers = {**plan.rollouts, "calls": plan.calls}
    assert {name: numbers.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("steps", "every", "until", "expected"),
    # At the end of steps `every`, 2 × `every`, … below `until`, and below the last step.
    [
        (300, 15, 150, 9),
        (3, 2, 4, 1),
        (2, 2, 4, 0),
        (100, 10, 31, 3),
        (100, 10, 30, 2),
        (9, 0, 9, 0),
    ],
)
def test_evolutions(steps: int, every: int, until: int, expected: int) -> None:
    strategy = InspoOptions(evolve_every=every, evolve_until=until)
    shape = RunShape(group_size=2, steps=steps)
    assert method_of("inspo").cost(strategy, shape).phases == expected


def data(folder: Path, count: int, name: str = "data") -> str:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f'{{"question": "q{i}", "answer": {i}}}\n' for i in range(count)))
    return str(path)


def parse(environment: Any, **changes: Any) -> RunConfig:
    raw = tiny(Path("out"), {"strategy": {"kind": "static"}, **changes})
    return parse_config(raw | {"environment": environment}, "test")


def test_plan_counts_the_questions_of_data(tmp_path: Path) -> None:
    dataset = {"path": data(tmp_path, 50), "validation": 3, "test": 7}
    rewards = ["exact_match"]
    single = parse("single_turn", dataset=dataset, rewards=rewards)
    assert split_sizes(single) == {"train": 40, "validation": 3, "test": 7}
    assert plan_run(single).rollouts["evaluate"] == 2 * 7  # before and after
    files = {split: data(tmp_path, n, split) for split, n in (("validation", 2), ("test", 4))}
    # Not indexed, imported or built: what it needs may be large, or elsewhere.
    for environment in (
        {"kind": "search", "corpus": "nowhere.jsonl"},
        {"kind": "tools", "tools": ["nowhere:add"]},
        {"kind": "trl", "factory": "nowhere:Game"},
    ):
        config = parse(environment, dataset={**dataset, **files}, rewards=rewards)
        assert split_sizes(config) == {"train": 50, "validation": 2, "test": 4}


def test_plan_counts_the_questions_of_an_environment_of_ones_own(tmp_path: Path) -> None:
    code = """
from cotune.environments.base import TaskEnvironment
from cotune.types import Task

class Mine(TaskEnvironment):
    def __init__(self, count, tasks=None):
        data = {s: [Task(f"{s}{i}", "q", ("a",)) for i in range(count)] for s in
                ("train", "validation", "test")}
        super().__init__(tasks or data, "Do it.")
"""
    (tmp_path / "mine.py").write_text(code)
    options = {"kind": "python", "object": f"{tmp_path / 'mine.py'}:Mine", "args": {"count": 4}}
    assert split_sizes(parse(options)) == {"train": 4, "validation": 4, "test": 4}
    dataset = {"path": data(tmp_path, 10)}
    assert split_sizes(parse(options, dataset=dataset)) == {"train": 7, "validation": 1, "test": 2}
    game = {
        "kind": "trl",
        "factory": "tests.environments.test_trl_factory:Counter",
        "validation": 3,
    }
    assert split_sizes(parse(game)) == {"train": 1000, "validation": 3, "test": 200}


def hint_phases(config: RunConfig, questions: int) -> int:
    return config.method.cost(config.strategy, config.shape(questions)).phases


def test_a_phase_of_hints_falls_due_at_the_end_of_each_epoch() -> None:
    # 8 tasks, 4 a step: epochs end after steps 2, 4, …; the last step has no phase after it.
    config = config_of(strategy=P2O, training={"steps": 5})
    assert hint_phases(config, 8) == 2
    assert hint_phases(config, 2) == config.training.steps - 1  # two epochs a step, one phase
    assert hint_phases(config_of(strategy=P2O, training={"steps": 4}), 8) == 1
    assert hint_phases(config, 1) == 0  # fewer than hard_set_min_count
    plan = plan_run(config)
    assert plan.rollouts["evolve"] == 2 * 20
    assert plan.calls == 2 * 7  # 3 questions a reflection


@pytest.mark.parametrize("frozen", [False, True])
def test_gepa_searches_once_and_a_frozen_policy_is_not_trained(frozen: bool) -> None:
    strategy = {"kind": "gepa", "budget": 20, "dev_size": 4}
    changes = {"training": {"frozen": frozen}, "evaluation": {"every": 1}}
    plan = plan_run(config_of(strategy=strategy, **changes))
    assert plan.rollouts["evolve"] == 20
    assert plan.calls == 7
    assert plan.rollouts["train"] == (0 if frozen else 24)
    assert plan.rollouts["evaluate"] == 3 * 6 + (1 if frozen else 3) * 3
