"""The pages on data and rewards: tables agree with the code, and programs run."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trl

import cotune
from cotune.data.cells import ALIAS_COLUMNS
from cotune.data.dataset import DEFAULT_COLUMNS
from cotune.rewards.functions import ARGUMENTS
from cotune.rewards.reward_model import rewards_of_trainer
from tests.docs.sources import DOCS, blocks
from tests.helpers import make_trajectory, under

DATA, REWARDS = DOCS / "how-to" / "data.md", DOCS / "how-to" / "rewards.md"


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    lines = rest.partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in x.strip("|").split("|")] for x in lines if x[:1] == "|"]
    return rows[2:]


def test_the_columns_are_those_that_are_read() -> None:
    rows = table(DATA, "Which columns are read")
    shown = {name.strip("`"): set(re.findall(r"`([\w.]+)`", columns)) for name, columns, _ in rows}
    read = {role: set(columns) for role, columns in DEFAULT_COLUMNS.items()}
    read["answers"] |= {*ALIAS_COLUMNS}
    assert shown == read


def test_the_arguments_of_reward_functions_are_listed() -> None:
    text = REWARDS.read_text(encoding="utf-8").partition("\n## What a function is given\n")[2]
    names = re.findall(r"^- `(\w+)", text.partition("\n## ")[0], re.MULTILINE)
    assert set(names) == set(ARGUMENTS)


def test_the_data_of_one_page_with_the_functions_of_the_other(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = blocks(DATA, "json")
    row = json.loads(line)
    rows = [row, *({**row, "question": f"{row['question']} ({i})"} for i in range(19))]
    Path("questions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    shown: dict[str, Any] = {}
    monkeypatch.setattr(cotune, "JointTrainer", lambda *values, **named: (values, named))
    exec(compile(blocks(DATA, "python")[0], "data.md", "exec"), shown)
    assert {split: len(tasks) for split, tasks in shown["tasks"].items()} == {
        "train": 14,
        "validation": 2,
        "test": 4,
    }
    (_, name), named = shown["trainer"]
    assert (name, named) == ("exact_match", {"environment": shown["environment"]})

    functions, library = blocks(REWARDS, "python")
    exec(compile(functions, "rewards.md", "exec"), shown)
    scored = cotune.RewardFunctions(
        [shown["exact"], cotune.WeightedReward(function=shown["brief"], weight=0.1)]
    )
    task = shown["tasks"]["train"][0]
    texts = ("It is Paris.", "London " * 100)
    found = scored(
        [make_trajectory(under(task), 0.0, text) for text in texts], shown["environment"]
    )
    assert [t.reward for t in found] == pytest.approx([1.1, 0.0])

    shown["dataset"] = []
    on_cpu = functools.partial(trl.GRPOConfig, use_cpu=True, bf16=False)
    monkeypatch.setattr(trl, "GRPOConfig", on_cpu)
    exec(compile(library, "rewards.md", "exec"), shown)
    given = shown["trainer"][1]
    rewards = rewards_of_trainer(given["reward_funcs"], None, given["args"])
    assert rewards is not None
    assert rewards.weights(shown["environment"]) == {"exact": 1.0, "brief": 0.1, "f1_squad": 0.5}
