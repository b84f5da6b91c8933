"""From a row to its run files: what differs from the base, what a stage takes over, what it may spend."""

from pathlib import Path
from typing import Any

import pytest

from cotune.errors import ConfigError
from cotune.experiments.compare.stages import Finished, SuiteRow, rows_of
from cotune.experiments.compare.suite_file import load_suite
from cotune.llm.bank import BankOptions
from tests.experiments.compare.folders import suite_file


def row(folder: Path, entry: Any, seed: int = 1, **changes: Any) -> SuiteRow:
    """The row of an entry, in a suite of it and its baseline."""
    methods = ["search-r1", entry]
    suite, base = load_suite(suite_file(folder, **{"methods": methods, **changes}))
    return next(r for r in rows_of(suite, base)[len(methods) - 1 :: len(methods)] if r.seed == seed)


def left(folder: Path, paid: int, instruction: str = "Found.") -> Finished:
    figures = {
        "policy_rollouts": {"train": paid, "evaluate": 99},
        "best_instruction": f"{instruction} <search> </search> <answer> </answer> <information> "
        "</information> <think> </think>",
    }
    return Finished(folder, figures)


def test_a_row_is_the_base_with_its_strategy_seed_and_budget(tmp_path: Path) -> None:
    suite = {"by_strategy": {"inspo": {"strategy.parents": 2}, "static": {"training.kl": 0.5}}}
    inspo = row(tmp_path, "inspo", **suite).config(0, (), {})
    assert (inspo.strategy.kind, inspo.seed, inspo.training.kl) == ("inspo", 1, 0)
    assert inspo.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert inspo.strategy.window == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert (inspo.training.rollout_budget, inspo.training.steps) == (40, 5)
    assert inspo.output == tmp_path / "out/inspo/seed-1/train"
    static = row(tmp_path, "grpo-2x", **suite).config(0, (), {})
    assert (static.strategy.kind, static.llm, static.training.kl) == ("static", None, 0.5)
    assert (static.training.rollout_budget, static.training.steps) == (80, 10)


def test_a_rows_own_fields_win_and_named_fields_get_the_seed(tmp_path: Path) -> None:
    entry = {"method": "inspo", "name": "mine", "set": {"strategy.parents": 2}}
    config = row(
        tmp_path, entry, seed_fields=["environment.seed"], set={"environment.top_k": 2}
    ).config(0, (), {})
    assert config.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.seed == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.top_k == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert config.name == "mine, seed 1"


def test_prompt_before_rl_spends_its_share_and_trains_under_what_it_found(tmp_path: Path) -> None:
    one = row(tmp_path, {"method": "prompt-before-rl", "share": 0.4}, prompt_stage={"seed": 7})
    first = one.config(0, (), {})
    assert (first.strategy.kind, first.training.rollout_budget) == ("inspo", 16)
    assert first.training.frozen
    second = one.config(1, [left(tmp_path / "p", 13)], {})
    assert (second.strategy.kind, second.training.rollout_budget) == ("static", 27)
    assert not second.training.frozen
    assert (second.instruction.text or "").startswith("Found.")
    assert second.policy.path == "bundled:geo"


def test_prompt_after_rl_searches_under_the_trained_policy(tmp_path: Path) -> None:
    one = row(tmp_path, "prompt-after-rl")
    first = one.config(0, (), {})
    assert (first.strategy.kind, first.training.rollout_budget) == ("static", 30)
    second = one.config(1, [left(tmp_path / "w", 24)], {})
    assert (second.strategy.kind, second.training.rollout_budget) == ("inspo", 16)
    assert second.training.frozen
    assert second.policy.path == str(tmp_path / "w" / "best")
    assert second.instruction.text is None


def test_w_p_w_takes_turns(tmp_path: Path) -> None:
    entry = {"method": "w-p-w", "optimizer": "gepa", "share": 0.5}
    one = row(tmp_path, entry, budget=80, by_strategy={"gepa": {"strategy.dev_size": 8}})
    kinds = [one.config(i, [left(tmp_path / "w", 20)] * i, {}).strategy.kind for i in range(3)]
    assert kinds == ["static", "gepa", "static"]
    last = one.config(2, [left(tmp_path / "w", 20), left(tmp_path / "p", 32)], {})
    assert last.training.rollout_budget == 28
    assert last.policy.path == str(tmp_path / "p" / "best")
    assert (last.instruction.text or "").startswith("Found.")


def test_an_instruction_is_carried_to_anothers_policy(tmp_path: Path) -> None:
    entry = {"method": "carried", "policy_from": "search-r1"}
    one = row(tmp_path, entry, methods=["search-r1", "inspo", entry])
    one = SuiteRow(one.suite, one.base, one.suite.methods[2], 1)
    assert one.needs == ("inspo", "search-r1")
    others = {"inspo": left(tmp_path / "i", 40), "search-r1": left(tmp_path / "s", 40, "Plain.")}
    config = one.config(0, (), others)
    assert (config.instruction.text or "").startswith("Found.")
    assert config.policy.path == str(tmp_path / "s" / "best")
    assert one.method.stages[0].command == ("baseline", "agent")
    assert one.allowance is None


@pytest.mark.parametrize(
    ("method", "kinds", "budgets"),
    [
        ("p-w-p", ["inspo", "static", "inspo"], [20, 120, 120]),
        ("p-w-p-w", ["inspo", "static", "inspo", "static"], [20, 60, 20, 100]),
    ],
)
def test_searches_and_trainings_share_the_budget_equally(
    tmp_path: Path, method: str, kinds: list[str], budgets: list[int]
) -> None:
    """A quarter of 160 for all searches; the last stage has what the earlier ones, 20 each, left."""
    one = row(tmp_path, method, budget=160)
    done = [left(tmp_path / name, 20) for name in ("p", "w", "p2")]
    configs = [one.config(i, done[:i], {}) for i in range(len(kinds))]
    assert [c.strategy.kind for c in configs] == kinds
    assert [c.training.frozen for c in configs] == [kind == "inspo" for kind in kinds]
    assert [c.training.rollout_budget for c in configs] == budgets
    assert configs[2].policy.path == str(tmp_path / "w" / "best")
    assert all((c.instruction.text or "").startswith("Found.") for c in configs[1:])
    assert len({one.stage_folder(i) for i in range(len(kinds))}) == len(kinds)


def test_hindsight_trains_under_anothers_instruction(tmp_path: Path) -> None:
    one = row(tmp_path, "hindsight", methods=["search-r1", "inspo", "hindsight"])
    one = SuiteRow(one.suite, one.base, one.suite.methods[2], 1)
    assert one.needs == ("inspo",)
    config = one.config(0, (), {"inspo": left(tmp_path / "i", 40)})
    assert (config.instruction.text or "").startswith("Found.")
    assert (config.strategy.kind, config.policy.path) == ("static", "bundled:geo")
    assert one.allowance == one.suite.budget


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("inspo-mixed", {"groups": "mixed", "target": "initial"}),
        ("fst-distill", {"kind": "fst", "target": "initial"}),
        ("spread", {"groups": "population", "target": "sampled"}),
        ("target-initial", {"groups": "own", "target": "initial"}),
    ],
)
def test_an_arm_is_options_of_its_strategy(
    tmp_path: Path, method: str, options: dict[str, str]
) -> None:
    strategy = row(tmp_path, method, budget=1000).config(0, (), {}).strategy
    assert {name: getattr(strategy, name) for name in options} == options


@pytest.mark.parametrize("order", ["file", "random"])
def test_random_proposals_are_of_the_suites_own_bank(tmp_path: Path, order: str) -> None:
    bank = {"kind": "bank", "path": str(tmp_path / "bank.txt"), "order": order}
    given = row(tmp_path, "inspo-random", set={"llm": bank}).config(0, (), {}).llm
    assert given == BankOptions(path=tmp_path / "bank.txt", order="random")
    with pytest.raises(ConfigError, match="random proposals need an llm of kind bank"):
        row(tmp_path, "inspo-random").config(0, (), {})


@pytest.mark.parametrize("world", ["geo"])
def test_tools_are_taken_away_where_there_are_any(tmp_path: Path, world: str) -> None:
    one = row(tmp_path, "grpo-no-tools", set={"environment": {"kind": world}})
    config = one.config(0, (), {})
    assert not config.environment.search  # pyright: ignore[reportAttributeAccessIssue]
    assert config.limits.turns == 1
    with pytest.raises(ConfigError, match=r"with tools, and environment\.kind is ladder"):
        row(tmp_path, "grpo-no-tools", set={"environment": {"kind": "ladder"}}).config(0, (), {})


def test_an_instruction_that_is_taken_over_stands_where_the_bases_does(tmp_path: Path) -> None:
    changes = {"set": {"instruction": {"role": "system"}}}
    one = row(tmp_path, "prompt-before-rl", **changes)
    config = one.config(1, [left(tmp_path / "p", 10)], {})
    assert (config.instruction.text or "").startswith("Found.")
    assert config.instruction.role == "system"
    text = (
        "Mine. <search> </search> <answer> </answer> <think> </think> <information> </information>"
    )
    told = row(tmp_path, "grpo-no-tools", set={"instruction": {"text": text, "role": "system"}})
    assert told.config(0, (), {}).instruction.text is None
    assert told.config(0, (), {}).instruction.role == "system"


def test_a_later_stage_sees_other_questions(tmp_path: Path) -> None:
    one = row(tmp_path, "w-p-w", budget=80, seed_fields=["environment.seed"])
    configs = [one.config(i, [left(tmp_path / "w", 20)] * i, {}) for i in range(3)]
    assert len({config.seed for config in configs}) == 3
    assert {c.environment.seed for c in configs} == {1}  # pyright: ignore[reportAttributeAccessIssue]


def test_steps_follow_a_rows_own_batch(tmp_path: Path) -> None:
    entry = {"method": "grpo", "set": {"training.group_size": 4}}
    assert row(tmp_path, entry).config(0, (), {}).training.steps == 3  # 40 in batches of 16
    entry = {"method": "grpo", "set": {"training.steps": 2}}
    assert row(tmp_path, entry).config(0, (), {}).training.steps == 2
