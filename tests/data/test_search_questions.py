"""The questions of a search environment: held out, from JSONL and Parquet."""

import json
import random
from pathlib import Path

import pytest

from cotune.data.search_questions import check_questions, read_questions
from cotune.environments.search import SearchOptions, questions_of
from cotune.errors import ConfigError
from tests.data.test_search_r1_parquet import row
from tests.data.test_search_r1_parquet import write as write_parquet


def questions(path: Path, count: int, seed: int = 0) -> Path:
    rows = [{"id": i, "question": f"Question {i}?", "answer": "x"} for i in range(count)]
    random.Random(seed).shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ids(tasks: object) -> set[str]:
    return {task.id for task in tasks}  # type: ignore[attr-defined]


def test_questions_are_held_out_by_their_text(tmp_path: Path) -> None:
    found = read_questions(questions(tmp_path / "a.jsonl", 100), 10, 20)
    assert {split: len(tasks) for split, tasks in found.items()} == {
        "train": 70,
        "validation": 10,
        "test": 20,
    }
    assert len(ids(found["train"]) | ids(found["validation"]) | ids(found["test"])) == 100
    shuffled = read_questions(questions(tmp_path / "b.jsonl", 100, seed=1), 10, 20)
    assert {s: ids(t) for s, t in shuffled.items()} == {s: ids(t) for s, t in found.items()}
    fewer = read_questions(tmp_path / "a.jsonl", 5, 20)
    assert ids(fewer["validation"]) < ids(found["validation"])
    with pytest.raises(ConfigError, match=r"a\.jsonl has 4 .* hold one out for environment\.val"):
        read_questions(questions(tmp_path / "a.jsonl", 4), 1, 1)


def test_train_and_test_files_as_search_r1_ships_them(tmp_path: Path) -> None:
    train = write_parquet(tmp_path / "train.parquet", *(row(f"q {i}?", i) for i in range(50)))
    test = write_parquet(tmp_path / "test.parquet", *(row(f"t {i}?", i) for i in range(30)))
    found = read_questions(train, 5, test)
    assert [len(found[split]) for split in ("train", "validation", "test")] == [45, 5, 30]
    assert [int(task.id.rpartition("-")[2]) for task in found["test"]] == list(range(30))


def test_splits_share_no_question_as_it_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(name: str, texts: list[str]) -> Path:
        lines = [json.dumps({"question": text, "answer": "x"}) for text in texts]
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    train = write("train.jsonl", [f"question {i}" for i in range(40)])
    test = write("test.jsonl", [f"question {i}?" for i in range(30)])
    apart = read_questions(train, 4, test)
    assert len(apart["train"]) == 36
    given = SearchOptions(train=train, validation=1, test=test, corpus=train, protocol="search-r1")
    with caplog.at_level("WARNING", "cotune"):
        found = questions_of(given)
    assert "30 questions of held-out files are not trained on" in caplog.text
    assert [len(found[split]) for split in ("train", "validation", "test")] == [9, 1, 30]
    tested = {task.question.removesuffix("?") for task in found["test"]}
    assert not tested & {task.question for task in found["validation"] + found["train"]}
    with pytest.raises(ConfigError, match=r"test\.jsonl has no question that is not held out"):
        read_questions(test, 1, test)


def test_a_parquet_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"environment\.train: no file .*none\.parquet in .*; name"
    ):
        read_questions(tmp_path / "none.parquet", 1, 1)


def test_numbers_that_make_no_split() -> None:
    with pytest.raises(ValueError, match=r"environment\.validation is 0; expected 1 or more"):
        check_questions(0, Path("x"))
