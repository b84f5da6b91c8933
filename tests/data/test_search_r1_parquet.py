"""Search-R1's Parquet files, as its scripts write them, are data sets like others."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from cotune.data.dataset import DatasetConfig, read_dataset
from cotune.environments.tag_protocol import SEARCH_R1
from cotune.errors import ConfigError

TOLD = "Answer the given question. Use <search> and <answer> Beijing </answer>. Question: "


def row(question: str = "who was it?", index: int = 0, **changes: Any) -> dict[str, Any]:
    """A row as `qa_search_train_merge.py` writes it, on top of FlashRAG's own columns."""
    return {
        "id": f"train_{index}",
        "question": question,
        "golden_answers": ["unused"],
        "data_source": "nq",
        "prompt": [{"role": "user", "content": f"{TOLD}{question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Ada", "Ada Lovelace"]}},
        "extra_info": {"split": "train", "index": index},
        **changes,
    }


def write(path: Path, *rows: dict[str, Any]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path


def read(path: Path, **columns: str | None) -> list[Any]:
    found = read_dataset(DatasetConfig(path=path, columns=columns, validation=1, test=1))  # pyright: ignore
    return [task for split in ("train", "validation", "test") for task in found[split]]


def rows(count: int, *without: str, **changes: Any) -> list[dict[str, Any]]:
    made = [row(f"q {i}?", i, **changes) for i in range(count)]
    return [{k: v for k, v in each.items() if k not in without} for each in made]


def test_a_merged_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *rows(9), row("why?", 1, data_source="hotpotqa"))
    with pytest.raises(ConfigError, match=r"row 10: the id 'train_1' came before.*\(null: a hash"):
        read(path)
    tasks = read(path, stratum="data_source", id=None)
    assert {task.stratum for task in tasks} == {"nq", "hotpotqa"}
    assert {task.answers for task in tasks} == {("unused",)}
    tasks = read(path, id=None, answers="reward_model.ground_truth.target")
    assert {task.answers for task in tasks} == {("Ada", "Ada Lovelace")}


def test_a_whole_prompt_is_asked_by_its_question(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *rows(10, "question", "golden_answers", "id"))
    tasks = read(path, answers="reward_model.ground_truth.target")
    assert all(task.question.startswith("Answer the given question.") for task in tasks)
    asked = sorted(SEARCH_R1.asked(task).question for task in tasks)
    assert asked == [f"q {i}?" for i in range(10)]
    assert SEARCH_R1.asked(SEARCH_R1.asked(tasks[0])) == SEARCH_R1.asked(tasks[0])
