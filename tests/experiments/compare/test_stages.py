"""From a row to its run files: what differs from the base, what a stage takes over, what it may spend."""

from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.stages import Finished, SuiteRow, rows_of
from cotune.experiments.compare.suite_file import load_suite
from tests.experiments.compare.folders import suite_file


def row(folder: Path, entry: Any, **changes: Any) -> SuiteRow:
    """The row of an entry with seed 1, in a suite of it and its baseline."""
    methods = ["grpo", entry]
    suite, base = load_suite(suite_file(folder, **{"methods": methods, **changes}))
    return next(r for r in rows_of(suite, base)[len(methods) - 1 :: len(methods)] if r.seed == 1)


def left(folder: Path, paid: int, instruction: str = "Found.") -> Finished:
    figures = {
        "policy_rollouts": {"train": paid, "evaluate": 99},
        "best_instruction": f"{instruction} <search> </search> <answer> </answer> <information> "
        "</information> <think> </think>",
    }
    return Finished(folder, figures)


def test_a_row_is_the_base_with_its_strategy_seed_and_budget(tmp_path: Path) -> None:
    suite = {"by_strategy": {"inspo": {"strategy.parents": 2}, "static": {"training.kl": 0.5}}}
    inspo = row(tmp_path, "inspo", **suite).config(0, ())
    assert (inspo.strategy.kind, inspo.seed, inspo.training.kl) == ("inspo", 1, 0)
    assert inspo.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert inspo.strategy.window == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert (inspo.training.rollout_budget, inspo.training.steps) == (40, 5)
    assert inspo.output == tmp_path / "out/inspo/seed-1/train"
    static = row(tmp_path, {"method": "grpo", "name": "twice", "compute": "2x"}, **suite).config(
        0, ()
    )
    assert (static.strategy.kind, static.llm, static.training.kl) == ("static", None, 0.5)
    assert (static.training.rollout_budget, static.training.steps) == (80, 10)


def test_a_rows_own_fields_win_and_named_fields_get_the_seed(tmp_path: Path) -> None:
    entry = {"method": "inspo", "name": "mine", "set": {"strategy.parents": 2}}
    config = row(
        tmp_path, entry, seed_fields=["environment.seed"], set={"environment.test": 4}
    ).config(0, ())
    assert config.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.seed == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.test == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert config.name == "mine, seed 1"


def test_prompt_before_rl_spends_its_share_and_trains_under_what_it_found(tmp_path: Path) -> None:
    one = row(tmp_path, {"method": "prompt-before-rl", "share": 0.4}, prompt_stage={"seed": 7})
    first = one.config(0, ())
    assert (first.strategy.kind, first.training.rollout_budget) == ("inspo", 16)
    assert first.training.frozen
    second = one.config(1, [left(tmp_path / "p", 13)])
    assert (second.strategy.kind, second.training.rollout_budget) == ("static", 27)
    assert not second.training.frozen
    assert (second.instruction.text or "").startswith("Found.")
    assert second.policy.path == "bundled:geo"


def test_prompt_after_rl_searches_under_the_trained_policy(tmp_path: Path) -> None:
    one = row(tmp_path, "prompt-after-rl")
    first = one.config(0, ())
    assert (first.strategy.kind, first.training.rollout_budget) == ("static", 30)
    second = one.config(1, [left(tmp_path / "w", 24)])
    assert (second.strategy.kind, second.training.rollout_budget) == ("inspo", 16)
    assert second.training.frozen
    assert second.policy.path == str(tmp_path / "w" / "best")
    assert second.instruction.text is None


def test_w_p_w_takes_turns(tmp_path: Path) -> None:
    one = row(tmp_path, {"method": "w-p-w", "share": 0.5}, budget=80)
    kinds = [one.config(i, [left(tmp_path / "w", 20)] * i).strategy.kind for i in range(3)]
    assert kinds == ["static", "inspo", "static"]
    last = one.config(2, [left(tmp_path / "w", 20), left(tmp_path / "p", 32)])
    assert last.training.rollout_budget == 28
    assert last.policy.path == str(tmp_path / "p" / "best")
    assert (last.instruction.text or "").startswith("Found.")


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
    configs = [one.config(i, done[:i]) for i in range(len(kinds))]
    assert [c.strategy.kind for c in configs] == kinds
    assert [c.training.frozen for c in configs] == [kind == "inspo" for kind in kinds]
    assert [c.training.rollout_budget for c in configs] == budgets
    assert configs[2].policy.path == str(tmp_path / "w" / "best")
    assert all((c.instruction.text or "").startswith("Found.") for c in configs[1:])
    assert len({one.stage_folder(i) for i in range(len(kinds))}) == len(kinds)


def test_an_instruction_that_is_taken_over_stands_where_the_bases_does(tmp_path: Path) -> None:
    changes = {"set": {"instruction": {"role": "system"}}}
    one = row(tmp_path, "prompt-before-rl", **changes)
    config = one.config(1, [left(tmp_path / "p", 10)])
    assert (config.instruction.text or "").startswith("Found.")
    assert config.instruction.role == "system"


def test_a_later_stage_sees_other_questions(tmp_path: Path) -> None:
    one = row(tmp_path, "w-p-w", budget=80, seed_fields=["environment.seed"])
    configs = [one.config(i, [left(tmp_path / "w", 20)] * i) for i in range(3)]
    assert len({config.seed for config in configs}) == 3
    assert {c.environment.seed for c in configs} == {1}  # pyright: ignore[reportAttributeAccessIssue]


def test_gepa_searches_alone_within_the_budget(tmp_path: Path) -> None:
    config = row(tmp_path, "gepa", by_strategy={"gepa": {"strategy.dev_size": 8}}).config(0, ())
    assert config.training.frozen
    assert config.strategy.budget == 40  # pyright: ignore[reportAttributeAccessIssue]


def test_steps_follow_a_rows_own_batch(tmp_path: Path) -> None:
    entry = {"method": "grpo", "name": "mine", "set": {"training.group_size": 4}}
    assert row(tmp_path, entry).config(0, ()).training.steps == 3  # 40 in batches of 16
    entry = {"method": "grpo", "name": "mine", "set": {"training.steps": 2}}
    assert row(tmp_path, entry).config(0, ()).training.steps == 2
