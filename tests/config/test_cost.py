"""Upper bounds of what a run spends, worked by hand."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.cost import plan_run, split_sizes
from cotune.config.run_file import RunConfig, parse_config
from cotune.errors import ConfigError
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


def test_plan_counts_the_questions_of_files(tmp_path: Path) -> None:
    rows = [f'{{"question": "q{i}", "answers": ["a"]}}' for i in range(5)]
    for name, count in (("train", 5), ("validation", 2), ("test", 4)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:count]))
    names = {"path": "train", "validation": "validation", "test": "test"}
    config = config_of(
        # Not indexed: the corpus may be large.
        environment={"kind": "search", "corpus": "nowhere.jsonl"},
        dataset={field: str(tmp_path / f"{name}.jsonl") for field, name in names.items()},
        llm={"kind": "openai", "model": "m"},
    )
    assert plan_run(config).rollouts["evaluate"] == 3 * 4


def data(folder: Path, count: int, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f'{{"question": "q{i}", "answer": {i}}}\n' for i in range(count)))
    return path


def own(environment: Any, **changes: Any) -> RunConfig:
    raw = tiny(Path("out"), {"strategy": {"kind": "static"}, **changes})
    return parse_config(raw | {"environment": environment}, "test")


def test_plan_counts_the_questions_of_a_data_set(tmp_path: Path) -> None:
    dataset = {"path": str(data(tmp_path, 50)), "validation": 3, "test": 7}
    single = own("single_turn", dataset=dataset, rewards=["exact_match"])
    assert split_sizes(single) == {"train": 40, "validation": 3, "test": 7}
    assert plan_run(single).rollouts["evaluate"] == 2 * 7  # before and after
    few = {"path": str(data(tmp_path, 6, "few.jsonl")), "validation": 0, "test": 1}
    assert split_sizes(own("single_turn", dataset=few, rewards=["exact_match"])) == {
        "train": 5, "validation": 0, "test": 1,
    }  # fmt: skip
    for split in ("validation", "test"):
        with pytest.raises(
            ConfigError, match=rf"dataset.{split} is -1; expected [01] questions or more"
        ):
            own("single_turn", dataset=few | {split: -1}, rewards=["exact_match"])
    # Not built: what a function or a factory of one's own needs may be elsewhere.
    tools = {"kind": "tools", "tools": ["nowhere:add"]}
    assert split_sizes(own(tools, dataset=dataset, rewards=["exact_match"]))["test"] == 7
    factory = {"kind": "trl", "factory": "nowhere:Game"}
    assert split_sizes(own(factory, dataset=dataset))["train"] == 40


def test_plan_counts_the_questions_of_an_environment_of_ones_own(tmp_path: Path) -> None:
    code = """
from cotune.environments.base import TaskEnvironment
from cotune.types import Task

class Mine(TaskEnvironment):
    def __init__(self, count, tasks=None):
        made = {s: [Task(f"{s}{i}", "q", ("a",)) for i in range(count)] for s in
                ("train", "validation", "test")}
        super().__init__(tasks or made, "Do it.")
"""
    (tmp_path / "mine.py").write_text(code)
    options = {"kind": "python", "object": f"{tmp_path / 'mine.py'}:Mine", "args": {"count": 4}}
    assert split_sizes(own(options)) == {"train": 4, "validation": 4, "test": 4}
    game = {
        "kind": "trl",
        "factory": "tests.environments.test_trl_factory:Counter",
        "validation": 3,
    }
    assert split_sizes(own(game)) == {"train": 1000, "validation": 3, "test": 200}
    dataset = {"path": str(data(tmp_path, 10))}
    assert split_sizes(own(options, dataset=dataset)) == {"train": 7, "validation": 1, "test": 2}


def hint_phases(config: RunConfig, questions: int) -> int:
    return config.method.cost(config.strategy, config.shape(questions)).phases


def test_a_phase_of_hints_falls_due_at_the_end_of_each_epoch() -> None:
    # 8 tasks, 4 a step: epochs end after steps 2, 4, …; the last step has no phase after it.
    config = config_of(strategy=P2O, training={"steps": 5})
    assert hint_phases(config, 8) == 2
    assert hint_phases(config, 2) == config.training.steps - 1  # two epochs a step, one phase
    assert hint_phases(config_of(strategy=P2O, training={"steps": 4}), 8) == 1
    assert hint_phases(config, 1) == 0  # fewer than hard_set_min_count
    planned = plan_run(config)
    assert planned.rollouts["evolve"] == 2 * 20
    assert planned.calls == 2 * 7  # 3 questions a reflection


@pytest.mark.parametrize("frozen", [False, True])
def test_gepa_searches_once_and_a_frozen_policy_is_not_trained(frozen: bool) -> None:
    strategy = {"kind": "gepa", "budget": 20, "dev_size": 4}
    changes = {"training": {"frozen": frozen}, "evaluation": {"every": 1}}
    planned = plan_run(config_of(strategy=strategy, **changes))
    assert planned.rollouts["evolve"] == 20
    assert planned.calls == 7
    assert planned.rollouts["train"] == (0 if frozen else 24)
    assert planned.rollouts["evaluate"] == 3 * 6 + (1 if frozen else 3) * 3
