"""DeepScaleR's and DeepMath's files as they are, and which of their problems are trained on."""
# pandas has no type stubs.
# pyright: basic

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
import pytest

from cotune.data import rows
from cotune.environments.math import MathOptions, math_environment, read_problems, read_splits
from cotune.errors import ConfigError
from cotune.types import Task


def deepmath(path: Path, count: int = 40) -> Path:
    """A Parquet file in DeepMath-103K's schema; difficulties 5.0, 5.5, …, 9.5."""
    rows = [
        {
            "question": f"What is {i} + {i}?",
            "final_answer": str(2 * i),
            "difficulty": 5.0 + i % 10 / 2,
            "topic": "Mathematics -> Algebra",
            **{f"r1_solution_{n}": f"Trace {n}: \\boxed{{{2 * i}}}" for n in (1, 2, 3)},
        }
        for i in range(count)
    ]
    pandas.DataFrame(rows).to_parquet(path)
    return path


def deepscaler(path: Path, count: int = 40) -> Path:
    """A file in DeepScaleR's schema: one JSON list, or Parquet."""
    rows = [
        {"problem": f"Half of {2 * i}?", "answer": f"{i}", "solution": f"It is \\boxed{{{i}}}."}
        for i in range(count)
    ]
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        pandas.DataFrame(rows).to_parquet(path)
    return path


def options(train: Path, **fields: Any) -> MathOptions:
    return MathOptions(**{"train": train, "validation": 2, "test": 4, **fields})


def test_deepmath_as_it_is(tmp_path: Path) -> None:
    first, *_ = read_problems(deepmath(tmp_path / "a.parquet"), "train", options(tmp_path))
    assert (first.question, first.answers, first.solution) == ("What is 0 + 0?", ("0",), "")


def test_of_the_traces_only_the_one_that_is_named_is_read(tmp_path: Path) -> None:
    file = deepmath(tmp_path / "a.parquet")
    named = options(file, solution_column="r1_solution_2")
    assert read_problems(file, "train", named)[3].solution == "Trace 2: \\boxed{6}"
    (_, row), *_ = rows.file_rows(file, "f", {"r1_solution_1", "r1_solution_3"})
    assert list(row) == ["question", "final_answer", "difficulty", "topic", "r1_solution_2"]


@pytest.mark.parametrize("name", ["deepscaler.json", "deepscaler.parquet"])
def test_deepscaler_as_it_is(tmp_path: Path, name: str) -> None:
    tasks = read_problems(deepscaler(tmp_path / name), "train", options(tmp_path))
    assert (tasks[3].question, tasks[3].answers) == ("Half of 6?", ("3",))
    assert tasks[3].solution == "It is \\boxed{3}."


def ids(tasks: Mapping[str, Sequence[Task]]) -> set[str]:
    return {task.id for task in tasks["train"]}


def test_only_hard_ones_and_so_many_by_seed(tmp_path: Path) -> None:
    file = deepmath(tmp_path / "a.parquet", 100)
    hard = read_splits(options(file, difficulty_at_least=7))
    # Six of ten difficulties are 7 or more; 2 and 4 of these 60 are held out.
    assert {split: len(tasks) for split, tasks in hard.items()} == {
        "train": 54, "validation": 2, "test": 4,
    }  # fmt: skip
    assert all(t.columns["difficulty"] >= 7 for tasks in hard.values() for t in tasks)
    few = read_splits(options(file, difficulty_at_least=7, limit=10))
    assert (len(few["train"]), few["test"]) == (10, hard["test"])
    assert ids(few) < ids(hard)
    other = read_splits(options(file, difficulty_at_least=7, limit=10, seed=1))
    assert ids(other) != ids(few)

    frame = pandas.read_parquet(file).sample(frac=1, random_state=0)
    frame.to_parquet(file)
    shuffled = read_splits(options(file, difficulty_at_least=7, limit=10))
    assert ids(shuffled) == ids(few)


def test_splits_share_no_problem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = deepmath(tmp_path / "a.parquet")
    test = tmp_path / "test.jsonl"
    test.write_text('{"problem": "What is 7 + 7?", "answer": "14"}\n')
    with caplog.at_level(logging.WARNING, "cotune"):
        found = math_environment(options(file, test=test))
    assert "1 questions of held-out files are not trained on" in caplog.text
    texts = [{t.question for t in found.tasks(s)} for s in ("train", "validation", "test")]
    assert len(set.union(*texts)) == sum(map(len, texts)) == 40
    assert texts[2] == {"What is 7 + 7?"}
    ids = [t.id for s in ("train", "validation", "test") for t in found.tasks(s)]
    assert len(set(ids)) == 40


def test_what_a_test_file_holds_is_not_held_out_for_validation(tmp_path: Path) -> None:
    train, test = deepmath(tmp_path / "a.parquet", 40), deepmath(tmp_path / "b.parquet", 20)
    found = read_splits(options(train, validation=2, test=test))
    texts = {split: {task.question for task in tasks} for split, tasks in found.items()}
    assert [len(texts[s]) for s in ("train", "validation", "test")] == [18, 2, 20]
    assert not texts["validation"] & texts["test"]
    with pytest.raises(ConfigError, match=r"a\.parquet has no question that is not held out; add"):
        read_splits(options(train, validation=2, test=train))


def test_a_repeated_problem_is_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"problem": "1 + 1?", "answer": "2"}] * 3))
    with caplog.at_level(logging.WARNING, "cotune"):
        assert len(read_problems(file, "train", options(file))) == 1
    assert "2 rows repeat a question" in caplog.text


def test_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(name: str, subset: str | None, split: str) -> Any:
        from datasets import Dataset

        asked.append((name, subset, split))
        write = deepscaler if split == "dev" else deepmath
        return Dataset.from_pandas(pandas.read_parquet(write(tmp_path / "a.parquet")))

    monkeypatch.setattr("datasets.load_dataset", load)
    found = read_splits(options(Path("hub:zwhe99/DeepMath-103K"), test=Path("hub:zwhe99/D:dev")))
    assert asked == [("zwhe99/DeepMath-103K", None, "train"), ("zwhe99/D", None, "dev")]
    assert (len(found["train"]), len(found["test"])) == (38, 40)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"question_column": "problem"}, r'row 1: no field "problem", only question, final_answer'),
        ({"answer_column": "answer"}, r'row 1: no field "answer", only question, final_answer'),
        ({"difficulty_at_least": 10}, r"no problem of difficulty 10 or more; lower env"),
        (
            {"difficulty_at_least": 7, "difficulty_column": "level"},
            r'"level" is None; expected a n',
        ),
        ({"difficulty_at_least": 7, "difficulty_column": "topic"}, r'"topic" is \'Mathematics'),
        ({"train": Path("no.parquet")}, r"environment\.train: no file no\.parquet in "),
        ({"train": Path("a.txt")}, r"environment\.train: no file a\.txt"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = options(deepmath(tmp_path / "a.parquet"), **fields) if "train" not in fields else (
        options(**fields)
    )  # fmt: skip
    with pytest.raises(ConfigError, match=message) as caught:
        read_splits(given)
    assert "\n" not in str(caught.value)


def test_too_few_to_hold_out(tmp_path: Path) -> None:
    file = deepmath(tmp_path / "a.parquet", 3)
    with pytest.raises(ConfigError, match=r"3 different questions; .* for environment\.v"):
        read_splits(options(file))


@pytest.mark.parametrize("fields", [{"limit": 0}, {"validation": 0}, {"test": -1}])
def test_counts_are_positive(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected 1 or more"):
        options(Path("a"), **fields)
    with pytest.raises(ValueError, match=r"difficulty_at_least is nan"):
        options(Path("a"), difficulty_at_least=float("nan"))
