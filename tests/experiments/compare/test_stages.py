"""From a row to its run files: what differs from the base, what a stage takes over, what it may spend."""

from pathlib import Path
from typing import Any

import pytest

from cotune.experiments.compare.running import SuiteCell
from cotune.experiments.compare.suite_file import load_suite
from cotune.experiments.measure import pooled_by
from tests.experiments.compare.folders import suite_file


def row(folder: Path, entry: Any, **changes: Any) -> SuiteCell:
    """The row of an entry with seed 1, in a suite of it and its baseline."""
    suite, base = load_suite(suite_file(folder, methods=["grpo", entry], **changes))
    return SuiteCell(suite, base, suite.methods[-1], 1)


def stage_summary(rollouts: int) -> dict[str, Any]:
    """What a finished stage leaves."""
    return {
        "policy_rollouts": {"train": rollouts, "evaluate": 99},
        "best_instruction": "Found. <search> </search> <answer> </answer> <information> "
        "</information> <think> </think>",
    }


def test_a_row_is_the_base_with_its_strategy_seed_and_budget(tmp_path: Path) -> None:
    suite = {"by_strategy": {"inspo": {"strategy.parents": 2}, "static": {"training.kl": 0.5}}}
    inspo = row(tmp_path, "inspo", **suite).config(0)
    assert (inspo.strategy.kind, inspo.seed, inspo.training.kl) == ("inspo", 1, 0)
    assert inspo.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert inspo.strategy.window == 5  # pyright: ignore[reportAttributeAccessIssue]
    assert (inspo.training.rollout_budget, inspo.training.steps) == (40, 5)
    assert inspo.output == tmp_path / "out/inspo/seed-1/train"
    twice = {"method": "grpo", "name": "twice", "compute": "2x"}
    static = row(tmp_path, twice, **suite).config(0)
    assert (static.strategy.kind, static.llm, static.training.kl) == ("static", None, 0.5)
    assert (static.training.rollout_budget, static.training.steps) == (80, 10)


def test_a_rows_own_fields_win_and_named_fields_get_the_seed(tmp_path: Path) -> None:
    entry = {"method": "inspo", "name": "mine", "set": {"strategy.parents": 2}}
    changes = {"seed_fields": ["environment.seed"], "set": {"environment.test": 4}}
    config = row(tmp_path, entry, **changes).config(0)
    assert config.strategy.parents == 2  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.seed == 1  # pyright: ignore[reportAttributeAccessIssue]
    assert config.environment.test == 4  # pyright: ignore[reportAttributeAccessIssue]
    assert config.name == "mine, seed 1"


@pytest.mark.parametrize(
    ("entry", "budget", "kinds", "budgets"),
    [
        # An equal part for each stage but the last, which has what the earlier ones, 13 each, left.
        ({"method": "prompt-before-rl", "share": 0.4}, 40, "ps", [16, 27]),
        ({"method": "prompt-after-rl"}, 40, "sp", [30, 27]),
        ({"method": "w-p-w", "share": 0.5}, 80, "sps", [20, 40, 54]),
        ({"method": "p-w-p"}, 160, "psp", [20, 120, 134]),
        ({"method": "p-w-p-w"}, 160, "psps", [20, 60, 20, 121]),
    ],
)  # fmt: skip
def test_stages_share_the_budget_and_begin_with_what_the_earlier_ones_left(
    tmp_path: Path, entry: Any, budget: int, kinds: str, budgets: list[int]
) -> None:
    """By stage: p searches for an instruction by INSPO, frozen; s trains under it by GRPO."""
    staged = row(tmp_path, entry, budget=budget)
    summaries = [stage_summary(13)] * 3
    configs = [staged.config(i, summaries[:i]) for i in range(len(kinds))]
    assert "".join("p" if c.strategy.kind == "inspo" else "s" for c in configs) == kinds
    assert [c.training.frozen for c in configs] == [kind == "p" for kind in kinds]
    assert [c.training.rollout_budget for c in configs] == budgets
    for i, config in enumerate(configs):
        best = staged.folder / staged.stages[i - 1] / "best"
        policy = str(best) if "s" in kinds[:i] else "bundled:geo"
        assert config.policy.path == policy
        assert (config.instruction.text or "").startswith("Found.") == ("p" in kinds[:i])
    assert len(set(staged.stages)) == len(kinds)


def test_a_later_stage_sees_other_questions_and_keeps_the_role(tmp_path: Path) -> None:
    changes = {"set": {"instruction": {"role": "system"}}, "seed_fields": ["environment.seed"]}
    cell = row(tmp_path, "w-p-w", budget=80, **changes)
    configs = [cell.config(i, [stage_summary(20)] * i) for i in range(3)]
    assert len({config.seed for config in configs}) == 3
    other_seed = SuiteCell(cell.suite, cell.base, cell.entry, 2)
    other_configs = [other_seed.config(i, [stage_summary(10)] * i) for i in range(3)]
    assert len({pooled_by(c, 1) for c in configs} & {pooled_by(c, 2) for c in other_configs}) == 3
    assert {c.environment.seed for c in configs} == {1}  # pyright: ignore[reportAttributeAccessIssue]
    assert (configs[2].instruction.text or "").startswith("Found.")
    assert configs[2].instruction.role == "system"


def test_gepa_searches_alone_within_the_budget(tmp_path: Path) -> None:
    config = row(tmp_path, "gepa", by_strategy={"gepa": {"strategy.dev_size": 8}}).config(0)
    assert config.training.frozen
    assert config.strategy.budget == 40  # pyright: ignore[reportAttributeAccessIssue]


def test_steps_follow_a_rows_own_batch(tmp_path: Path) -> None:
    entry = {"method": "grpo", "name": "mine", "set": {"training.group_size": 4}}
    assert row(tmp_path, entry).config(0).training.steps == 3  # 40 in batches of 16
    entry = {"method": "grpo", "name": "mine", "set": {"training.steps": 2}}
    assert row(tmp_path, entry).config(0).training.steps == 2
