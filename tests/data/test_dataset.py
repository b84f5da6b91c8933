"""A user's data: files of every kind, columns, splits, and what is wrong with them in one line."""

import json
import logging
import pickle
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from pydantic import ValidationError

from cotune.data.dataset import DatasetConfig, read_dataset, tasks_from
from cotune.data.splits import SPLITS, hold_out
from cotune.types import Task
from cotune.utils.validation import describe
from tests.helpers import jsonl, raises_line

Rows = Sequence[Mapping[str, Any]]


def questions(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"What is {i}?", "answer": i} for i in range(first, first + count)]


def parquet(path: Path, rows: Rows, features: Features | None = None) -> Path:
    datasets.disable_progress_bars()
    Dataset.from_list([dict(row) for row in rows], features=features).to_parquet(path)
    return path


def read(path: Path, **fields: Any) -> dict[str, list[Task]]:
    return read_dataset(DatasetConfig(path=path, **fields))


def all_of(tasks: Mapping[str, Sequence[Task]]) -> list[Task]:
    return [task for split in tasks.values() for task in split]


# ---- files


def test_every_kind_of_file_gives_the_same_tasks(tmp_path: Path) -> None:
    rows = questions(20)
    (tmp_path / "list.json").write_text(json.dumps(rows, indent=1))
    cells = [f"{row['question']},{row['answer']}" for row in rows]
    (tmp_path / "a.csv").write_text("\n".join(["question,answer", *cells]))
    expected = read(jsonl(tmp_path / "a.jsonl", rows))
    assert [len(tasks) for tasks in expected.values()] == [14, 2, 4]
    assert read(jsonl(tmp_path / "lines.json", rows)) == expected
    assert read(tmp_path / "list.json") == expected
    assert read(parquet(tmp_path / "a.parquet", rows)) == expected
    in_texts = [{**row, "answer": str(row["answer"])} for row in rows]
    assert read(tmp_path / "a.csv") == read(jsonl(tmp_path / "b.jsonl", in_texts))


def test_cells_of_a_csv_are_texts_and_a_picture_is_not_decoded(tmp_path: Path) -> None:
    lines = ["question,answer,level", *(f"{i}?,007,1.50" for i in range(12)), "Q?,NA,"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    columns = {t.question: t.columns for t in all_of(read(tmp_path / "a.csv"))}
    assert columns["Q?"] == {"question": "Q?", "answer": "NA", "level": None}
    assert columns["3?"] == {"question": "3?", "answer": "007", "level": "1.50"}
    features = Features({"question": Value("string"), "picture": Image(decode=True)})
    picture = {"bytes": b"no image", "path": None}
    rows = [{"question": f"q{i}", "picture": picture} for i in range(10)]
    tasks = all_of(read(parquet(tmp_path / "a.parquet", rows, features)))
    assert [t.columns["picture"] for t in tasks] == [picture] * 10


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.jsonl", None, ["dataset.path: no file", "a.jsonl", ".parquet"]),
        ("a.txt", "x", ["dataset.path", "ends in .txt", ".jsonl", "a folder is loaded by dataset.name"]),
        ("a.jsonl", '{"question": "q"}\n{"question"', ["a.jsonl, line 2", "not JSON (JSONDecodeError: Expecting ':' delimiter)"]),
        ("a.json", "[1", ["a.json cannot be read (", "JSONDecodeError"]),
        ("a.json", '[{"question": "q"}, 3]', ["a.json, row 2: 3", "expected a mapping"]),
        ("a.csv", "", ["dataset.path", "a.csv holds no rows"]),
        ("a.csv", "question,answer\nWhat, now?,a\n", ["a.csv, row 1 has more cells than the header"]),
        ("a.parquet", "no", ["cannot be read (", "fix or rename"]),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(
    tmp_path: Path, name: str, content: str | None, parts: list[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with raises_line(*parts):
        read(tmp_path / name)


# ---- Hugging Face data sets


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as the hub lays it out, cloned to this machine."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "clone"
    (folder / "data").mkdir(parents=True)
    parquet(folder / "data" / "train-00000-of-00001.parquet", questions(20))
    parquet(folder / "data" / "test-00000-of-00001.parquet", questions(5, first=100))
    return folder


def test_a_hub_data_set_and_its_splits(clone: Path) -> None:
    tasks = read_dataset(DatasetConfig(name=str(clone), test=Path("test")))
    assert [t.question for t in tasks["test"]] == [f"What is {i}?" for i in range(100, 105)]
    assert len(tasks["validation"]) == 2
    assert len(tasks["train"]) == 18
    part = read_dataset(DatasetConfig(name=str(clone), split="train[:10]"))
    assert len(all_of(part)) == 10


def test_a_hub_data_set_that_cannot_be_had(clone: Path) -> None:
    with raises_line("dataset.name: cannot load split 'training'", "name its files"):
        read_dataset(DatasetConfig(name=str(clone), split="training"))
    with raises_line("'nobody/nothing'", "OfflineMode"):
        read_dataset(DatasetConfig(name="nobody/nothing"))


# ---- columns


def test_a_row_is_a_task() -> None:
    row = {
        "question": " Who? ",
        "answers": ["A", 2, True],
        "solution": "Think.",
        "stratum": 5,
        "id": 7,
    }
    (task,) = tasks_from([row])["train"]
    expected = Task("7", "Who?", ("A", "2", "True"), "5", "Think.", columns=row)
    assert task == expected
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301


@pytest.mark.parametrize(
    ("columns", "answers"),
    [
        *(({column: 0.5}, ("0.5",)) for column in ("answers", "answer", "golden_answers", "ground_truth")),
        ({"reward_model": {"ground_truth": {"target": ["Ada", "A."]}}}, ("Ada", "A.")),
        ({"reward_model": {"ground_truth": "34"}}, ("34",)),
        ({"answer": "[0, 1]"}, ("[0, 1]",)),
        ({"answer": np.float64(2)}, ("2",)),
        ({"answer": Decimal("1.50")}, ("1.50",)),
        # An array is a list, as pandas gives the lists of a Parquet file.
        ({"answers": np.array(["A", "B"], object)}, ("A", "B")),
        ({"answers": np.array([], object)}, ()),
        # GSM8K's form, and a heading.
        ({"answer": "Natalia sold 24.\nIn all 72.\n#### 72"}, ("72",)),
        ({"answer": "#### Title\nand a text below it"}, ("#### Title\nand a text below it",)),
        # What is blank is no answer.
        ({"answer": ["A", "", None, " "]}, ("A",)),
        ({"answer": " "}, ()),
    ],
)  # fmt: skip
def test_answers_by_default(columns: dict[str, Any], answers: tuple[str, ...]) -> None:
    (task,) = tasks_from([{"question": "Who?", **columns}])["train"]
    assert task.answers == answers
    assert task.columns == {"question": "Who?", **columns}


def test_columns_that_are_named_nested_or_not_to_be_read() -> None:
    row = {"ask": "Who?", "question": "not this", "gold": "A", "level": "hard"}
    columns = {"question": "ask", "answers": "gold", "stratum": "level", "context": "question"}
    (task,) = tasks_from([row], columns=columns)["train"]
    assert (task.question, task.answers, task.stratum) == ("not this\n\nWho?", ("A",), "hard")
    row = {"question": "Who?", "answers": {"text": ["A"]}, "id": "a"}
    (task,) = tasks_from([row], columns={"answers": None, "id": None})["train"]
    assert (task.answers, task.columns) == ((), row)
    assert task.id.startswith("train-")
    # A field below a column.
    row = {"question": "Who?", "reward_model": {"truth": {"target": ["A", "B"]}}}
    rows = [row, {"question": "Why?", "reward_model": None}]
    tasks = tasks_from(rows, columns={"answers": "reward_model.truth.target"})["train"]
    assert [task.answers for task in tasks] == [("A", "B"), ()]
    with raises_line('row 1: has no "reward_model.gold"'):
        tasks_from(rows, columns={"answers": "reward_model.gold"})
    # A column that some rows lack is there for all.
    tasks = tasks_from([{"question": "a", "hard": True}, {"question": "b"}])["train"]
    assert [task.columns["hard"] for task in tasks] == [True, None]


def test_a_data_set_in_its_own_format() -> None:
    data = Dataset.from_list([{"id": 7, "question": "2 + 2", "answers": [1, 2], "weights": [0.5]}])
    (task,) = tasks_from(data.with_format("torch"))["train"]
    assert (task.id, task.answers) == ("7", ("1", "2"))
    assert task.columns["weights"].flatten().tolist() == [0.5]


def test_chat_messages() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Who?", "tool_calls": None},
    ]
    (task,) = tasks_from([{"prompt": messages}])["train"]
    assert (task.question, task.chat) == ("Who?", True)
    assert task.context == (("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"))
    assert task.columns["prompt"] == messages


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ({"prompt": []}, ["\"prompt\" is []", "that end with the user's"]),
        ({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ["leave out the policy's reply"]),
        ({"prompt": [{"role": "tool", "content": "x"}]}, ["message 0", "of role 'tool'"]),
        ({"prompt": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, ["message 0", "or a tool call"]),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]}, ["message 0", "'type': 'image'", "only text"]),
        ({"prompt": 3}, ['"prompt" is 3', "or chat messages"]),
    ],
)  # fmt: skip
def test_a_cell_of_the_wrong_kind(row: dict[str, Any], parts: list[str]) -> None:
    (column, *_) = row
    with raises_line("dataset, row 2: ", *parts):
        tasks_from([{column: "q0"}, row])


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", [{"text": "q", "gold": 1}])
    with raises_line(
        match="^dataset.path: .* has none of the columns question, prompt, problem, only text, gold"
    ):
        read(file)
    with raises_line(match="^dataset.columns.answers is 'gould'"):
        read(file, columns={"question": "text", "answers": "gould"})


# ---- ids


def test_ids_do_not_meet(tmp_path: Path) -> None:
    # Equal questions are tasks of their own.
    rows = [*questions(10), {"question": "What is 3? ", "answer": "another"}]
    tasks = tasks_from(rows)["train"]
    first, second = (t for t in tasks if t.question == "What is 3?")
    assert second.id == f"{first.id}-1"
    assert (first.answers, second.answers) == (("3",), ("another",))
    chats = [
        {"prompt": [{"role": "system", "content": text}, {"role": "user", "content": "?"}]}
        for text in "ab"
    ]
    # After other messages a question is another one.
    first, second = tasks_from(chats)["train"]
    assert second.id != f"{first.id}-1"
    # Files have prefixes.
    rows = [{"id": i, **row} for i, row in enumerate(questions(10))]
    train = jsonl(tmp_path / "a.jsonl", rows)
    test = jsonl(tmp_path / "b.jsonl", [{**row, "question": f"t {row['id']}"} for row in rows])
    tasks = read(train, test=test)
    assert {t.id for t in tasks["test"]} == {f"test-{i}" for i in range(10)}
    assert {t.id for t in (*tasks["train"], *tasks["validation"])} == {str(i) for i in range(10)}


# ---- splits


def ids(tasks: Sequence[Task]) -> set[str]:
    return {task.question for task in tasks}


def test_what_is_held_out_depends_on_the_questions_alone() -> None:
    rows = questions(400)
    before = tasks_from(rows, validation=20, test=40)
    # Not on their order.
    shuffled = random.Random(0).sample(rows, len(rows))
    after = tasks_from(shuffled, validation=20, test=40)
    assert {split: ids(after[split]) for split in SPLITS} == {s: ids(before[s]) for s in SPLITS}
    in_order = [row["question"] for row in shuffled if row["question"] in ids(after["train"])]
    assert [task.question for task in after["train"]] == in_order
    # It changes little with more rows.
    after = tasks_from(questions(440), validation=20, test=40)
    for split in ("test", "validation"):
        assert len(ids(after[split]) & ids(before[split])) >= 0.8 * len(before[split])
        # Nothing that was trained on is held out now.
        assert not ids(after[split]) & ids(before["train"])
    # How much of one split is held out does not change the other.
    few = tasks_from(questions(100), validation=1, test=10)
    many = tasks_from(questions(100), validation=10, test=10)
    assert many["test"] == few["test"]
    assert ids(few["validation"]) < ids(many["validation"])


def test_too_few_to_hold_some_out(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "a.jsonl", questions(9))
    with raises_line("has 9 different questions; expected at least 10", "dataset.validation"):
        read(file)
    tasks = read(file, validation=0, limit=5)
    assert [len(tasks[split]) for split in SPLITS] == [5, 0, 1]
    tasks = read(file, validation=jsonl(tmp_path / "b.jsonl", questions(3, first=50)))
    assert [len(tasks[split]) for split in SPLITS] == [8, 3, 1]


def test_test_questions_that_are_trained_on_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = jsonl(tmp_path / "a.jsonl", questions(20))
    test = jsonl(tmp_path / "b.jsonl", questions(5, first=18))
    with caplog.at_level(logging.WARNING, "cotune"):
        read(train, validation=test, test=test)
    assert "dataset.test: 2 of 5 questions are also training questions" in caplog.text


# ---- the run file's section


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "dataset: has neither path nor name"),
        ({"path": "a.jsonl", "name": "b"}, "has both path and name"),
        ({"path": "a.jsonl", "test": -1}, "dataset.test is -1"),
        ({"path": "a.jsonl", "columns": {"anwser": "a"}}, "columns.anwser"),
    ],
)
def test_a_section_that_is_wrong(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DatasetConfig.model_validate(section)
    assert message in describe(caught.value, DatasetConfig)


# ---- rows at hand


def test_rows_at_hand_give_the_tasks_of_a_file_that_holds_them(tmp_path: Path) -> None:
    rows = questions(20)
    file = read(jsonl(tmp_path / "a.jsonl", rows), validation=2, test=3)
    for at_hand in (rows, iter(rows), Dataset.from_list(rows)):
        assert tasks_from(at_hand, validation=2, test=3) == file
    tasks = tasks_from(rows, test=questions(3, first=50))
    assert [len(tasks[split]) for split in SPLITS] == [20, 0, 3]
    assert [task.question for task in tasks["train"]] == [row["question"] for row in rows]
    assert tasks["test"][0].id.startswith("test-")


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([], ["dataset holds no rows"]),
        ([{"question": "a"}, "b"], ["dataset, row 2: 'b'", "expected a mapping"]),
        (datasets.DatasetDict({"train": Dataset.from_list([{"question": "a"}])}),
         ["dataset: is a DatasetDict of train", "data['train']"]),
    ],
)  # fmt: skip
def test_rows_at_hand_that_are_wrong(rows: Any, parts: list[str]) -> None:
    with raises_line(*parts):
        tasks_from(rows)


def test_rows_with_the_same_key_are_in_one_split() -> None:
    keys = [f"q{i % 20}" for i in range(160)]
    places = hold_out(keys, {"validation": 1, "test": 2}, "rows")
    assert [len(places[split]) for split in SPLITS] == [136, 8, 16]
    assert sum(len({keys[i] for i in rows}) for rows in places.values()) == 20
    # Rows that share one key are split one by one.
    places = hold_out(["q"] * 40, {"validation": 4, "test": 4}, "rows")
    assert [len(places[split]) for split in SPLITS] == [32, 4, 4]
