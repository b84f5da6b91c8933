"""Search-R1's Parquet files: as its scripts write them, and everything that can be wrong with one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest

from cotune.data.search_questions import read_tasks
from cotune.errors import ConfigError
from cotune.types import Task

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


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in row().items() if name not in names}


def test_a_merged_file(tmp_path: Path) -> None:
    second = {**row("Question: which one?", data_source="hotpotqa"), "question": "another column"}
    path = write(tmp_path / "train.parquet", row(), row("why?", 1), second)
    found = read_tasks(path, "train")
    answers = ("Ada", "Ada Lovelace")
    assert found[0].columns["reward_model"]["ground_truth"]["target"] == list(answers)
    assert [replace(task, columns={}) for task in found] == [
        Task("nq-train-0", "who was it?", answers, "nq"),
        Task("nq-train-1", "why?", answers, "nq"),
        Task("hotpotqa-train-0", "Question: which one?", answers, "hotpotqa"),
    ]


def test_ids_stay_where_rows_are_shuffled_and_a_file_is_cut_in_two(tmp_path: Path) -> None:
    rows = [row(f"q {i}?", i) for i in range(5)]
    whole = read_tasks(write(tmp_path / "all.parquet", *rows), "test")
    folder = tmp_path / "parts"
    folder.mkdir()
    write(folder / "b.parquet", *rows[:2])
    write(folder / "a.parquet", *rows[2:])
    parts = read_tasks(folder, "test")
    assert parts == whole[2:] + whole[:2]


@pytest.mark.parametrize("at", [4095, 4096, 9000])
def test_a_long_file_names_the_row(tmp_path: Path, at: int) -> None:
    rows = [row(f"q {i}?", i) for i in range(9001)]
    assert read_tasks(write(tmp_path / "a.parquet", *rows), "train")[at].question == (f"q {at}?")
    rows[at]["reward_model"] = {"style": "rule", "ground_truth": {"target": []}}
    with pytest.raises(ConfigError, match=rf"a.parquet, row {at + 1}: \"reward_model\" is"):
        read_tasks(write(tmp_path / "a.parquet", *rows), "train")


def test_what_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    (task,) = read_tasks(write(path, without("prompt", "reward_model")), "train")
    assert (task.question, task.answers) == ("who was it?", ("unused",))
    (task,) = read_tasks(write(path, without("data_source", "extra_info")), "train")
    assert task.stratum == ""
    assert task.id.startswith("train-")
    assert read_tasks(path, "train")[0].id == task.id
    other = [{"role": "user", "content": "Search, then say who it was."}]
    (task,) = read_tasks(write(path, row(prompt=other)), "train")
    assert task.question == "who was it?"
    target = {"style": "rule", "ground_truth": {"target": ["", "Ada", " "]}}
    (task,) = read_tasks(write(path, row(reward_model=target)), "train")
    assert task.answers == ("Ada",)


def test_a_system_prompt_stays_before_the_question(tmp_path: Path) -> None:
    prompt = [{"role": "system", "content": "Be brief."}, row()["prompt"][0]]
    (task,) = read_tasks(write(tmp_path / "a.parquet", row(prompt=prompt)), "train")
    assert task.context == (("system", "Be brief."),)
    assert task.question == "who was it?"


NO_MARK = [{"role": "user", "content": "who was it?"}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [without("prompt", "question")],
            'row 1: no field "question", only id, .*; add a prompt with Search-R1.s',
        ),
        (
            [without("reward_model", "golden_answers")],
            r'no field "reward_model", only id, .*\(or reward_model, or golden_answers\)',
        ),
        ([row(prompt=[{"text": "who?"}])], 'row 1: message 0 of "prompt": is of role None'),
        ([row(prompt=[{"role": "tool", "content": "x"}])], '"prompt": is of role .tool.; expected'),
        (
            [{**row(prompt=NO_MARK), "question": " "}],
            "row 1: \"question\" is ' '; expected text, as in a prompt with Search-R1's",
        ),
        ([{**row(prompt=None), "question": None}, row()], 'row 1: "question" is None; expected'),
        ([row(prompt=[]), row()], 'row 1: "prompt" ends with nothing; expected'),
        ([row(reward_model="rule")], r'"reward_model" is .rule.; expected \{style, ground_truth'),
        ([row(reward_model={"ground_truth": ["Ada"]})], '"reward_model" is .*; expected'),
        ([row(reward_model={"ground_truth": {"target": [1]}})], '"reward_model" is .*; expected'),
        ([row(reward_model={"ground_truth": {"target": [" "]}})], "one at least"),
        ([row(data_source=3)], '"data_source" is 3; expected text'),
        ([row(), row("why?")], "row 2: the task 'nq-train-0' came before; drop one"),
    ],
)
def test_a_bad_file_is_told_in_one_line(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    path = write(tmp_path / "a.parquet", *rows)
    with pytest.raises(ConfigError, match=message) as caught:
        read_tasks(path, "train")
    assert str(caught.value).startswith(f"environment.train: {path}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_files_that_are_none(tmp_path: Path) -> None:
    garbage = tmp_path / "a.parquet"
    garbage.write_bytes(b"PAR1 no more")
    with pytest.raises(ConfigError, match=r"environment\.test: .*cannot be read as Parquet"):
        read_tasks(garbage, "test")
    whole = write(tmp_path / "b.parquet", row())
    whole.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        read_tasks(whole, "test")
    empty = tmp_path / "c.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row()])[:0], empty)
    with pytest.raises(ConfigError, match=r"c\.parquet holds no rows"):
        read_tasks(empty, "test")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="holds no Parquet file; name the file"):
        read_tasks(tmp_path / "folder", "test")
