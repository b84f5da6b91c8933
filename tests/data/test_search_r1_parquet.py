"""Search-R1's Parquet files, as its scripts write them, are data sets like others."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet

from cotune.data.dataset import DatasetConfig, read_dataset
from cotune.environments.search import TagProtocol

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


def test_a_whole_prompt_is_asked_by_its_question(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *rows(10, "question", "golden_answers", "id"))
    tasks = read(path)
    assert {task.answers for task in tasks} == {("Ada", "Ada Lovelace")}
    assert all(task.question.startswith("Answer the given question.") for task in tasks)
    phrase = TagProtocol().phrase
    asked = sorted(phrase(task).question for task in tasks)
    assert asked == [f"q {i}?" for i in range(10)]
    assert phrase(phrase(tasks[0])) == phrase(tasks[0])
