"""`cotune evaluate` on finished runs of the bundled policies: the whole path, from the command line. Metrics by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cotune.config.run_file import RunConfig
from cotune.environments.base import SingleTurnEnvironment
from cotune.environments.single_turn import INITIAL_INSTRUCTION as SOLVE
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluation import figures_of
from cotune.experiments.evaluate.questions import EvaluationOptions, question_sets
from cotune_lab.worlds.geo import INITIAL_INSTRUCTION as SEARCH
from tests.command_line import Command, Refused
from tests.experiments.evaluate.folders import BETTER, GEO, LADDER, short, write_run
from tests.export.finished import files
from tests.run_files import environment_of


@pytest.fixture(scope="module")
def geo(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    return write_run(tmp_path_factory.mktemp("geo") / "run", GEO, BETTER)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Where no reward is looked for."""
    return write_run(tmp_path_factory.mktemp("small") / "run", short(), BETTER)


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    hint = "Work through it in written columns and carry what is over."
    return write_run(tmp_path_factory.mktemp("ladder") / "run", LADDER, SOLVE, hint)


Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(run_command: Command) -> Evaluate:
    """The JSON that the command prints, and nothing else."""

    def evaluate_as_json(config: RunConfig, *arguments: object) -> dict[str, Any]:
        ended = run_command("evaluate", config.output, "--json", *arguments)
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    return evaluate_as_json


def figures(result: dict[str, Any], column: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(f["metric"], f["statistic"]): f for f in result["figures"] if f["column"] == column}


def test_greedy_alone_on_the_runs_own_questions(geo: RunConfig, evaluate: Evaluate) -> None:
    files_before = files(geo.output)
    evaluation = evaluate(geo)
    assert files(geo.output) == files_before
    assert [c["name"] for c in evaluation["columns"]] == ["best", "initial"]
    assert [c["instruction"] for c in evaluation["columns"]] == [BETTER, SEARCH]
    (result,) = evaluation["sets"]
    assert (result["name"], result["n"], result["samples"]) == ("test", 6, 0)
    best, initial = figures(result, "best"), figures(result, "initial")
    assert list(best) == [("reward", "greedy")]
    exact = best["reward", "greedy"]
    assert exact["title"] == "exact match"
    assert exact["by_stratum"].keys() == {"1 hop", "2 hops", "3 hops"}
    assert exact["mean"] == sum(s["mean"] * s["n"] for s in exact["by_stratum"].values()) / 6
    low, high = exact["interval"]
    assert 0 <= low < exact["mean"] < high <= 1
    # The instruction that says how to search is what the policy was made to follow.
    assert exact["mean"] > initial["reward", "greedy"]["mean"]


def test_sampled_beside_greedy(small: RunConfig, evaluate: Evaluate) -> None:
    arguments = ("--samples", 3, "--temperature", 0.7, "--limit", 3)
    evaluation = evaluate(small, *arguments)
    assert (evaluation["schema_version"], evaluation["temperature"]) == (1, 0.7)
    (result,) = evaluation["sets"]
    best = figures(result, "best")
    assert list(best) == [("reward", name) for name in ("greedy", "avg@3", "pass@3")]
    assert best["reward", "avg@3"]["mean"] <= best["reward", "pass@3"]["mean"]
    assert {f["n"] for f in result["figures"]} == {3}
    assert figures(evaluate(small, *arguments)["sets"][0], "best") == best


def search_r1_file(config: RunConfig, path: Path) -> Path:
    """The run's test questions in Search-R1's schema."""
    tasks = environment_of(config).tasks("test")
    rows = [
        {
            "id": f"test_{i}", "question": task.question, "golden_answers": list(task.answers),
            "data_source": "hotpotqa", "ability": "fact-reasoning",
            "prompt": [{"role": "user", "content": task.question}],
            "reward_model": {"ground_truth": {"target": list(task.answers)}, "style": "rule"},
            "extra_info": {"index": i, "split": "test"},
        }
        for i, task in enumerate(tasks)
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_qa_benchmark_with_the_runs_search_engine(
    geo: RunConfig, evaluate: Evaluate, tmp_path: Path
) -> None:
    file = search_r1_file(geo, tmp_path / "test.parquet")
    evaluation = evaluate(geo, "--benchmark", f"hotpotqa={file}", "--split", "test")
    test, benchmark = evaluation["sets"]
    assert (test["name"], benchmark["name"], benchmark["source"]) == ("test", "hotpotqa", str(file))
    exact = figures(benchmark, "best")["reward", "greedy"]
    assert exact["mean"] == figures(test, "best")["reward", "greedy"]["mean"] > 0
    assert list(figures(benchmark, "best")) == [("reward", "greedy"), ("f1", "greedy")]
    assert list(figures(test, "best")) == [("reward", "greedy")]


def test_a_math_benchmark_by_boxed_answers(
    arithmetic: RunConfig, evaluate: Evaluate, tmp_path: Path
) -> None:
    tasks = environment_of(arithmetic).tasks("test")
    rows = [
        {"id": i, "problem": t.question, "answer": t.answers[0], "solution": "", "url": "", "year": "2024"}
        for i, t in enumerate(tasks)
    ]  # fmt: skip
    file = tmp_path / "aime.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), file)
    evaluation = evaluate(arithmetic, "--benchmark", f"aime24={file}", "--split", "test")
    assert [c["name"] for c in evaluation["columns"]] == ["best", "initial", "hinted"]
    test, benchmark = evaluation["sets"]
    for column in ("best", "initial", "hinted"):
        boxed = figures(benchmark, column)["reward", "greedy"]
        assert boxed["mean"] == figures(test, column)["reward", "greedy"]["mean"] > 0


def test_words_in_a_box_are_compared_as_words(
    arithmetic: RunConfig, small: RunConfig, evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = [{"id": "a", "question": "What is 23 + 4 + 2?", "golden_answers": ["the 29", "nine"]}]
    file = tmp_path / "qa.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (result,) = evaluate(arithmetic, "--benchmark", f"bamboogle={file}")["sets"]
    exact = figures(result, "best")["reward", "greedy"]
    assert (exact["title"], exact["mean"]) == ("exact match", 1.0)
    # Beside another reward, answers are compared all the same.
    (result,) = evaluate(small, "--benchmark", f"bamboogle={file}", "--set", "rewards=[f1_squad]")[
        "sets"
    ]
    titles = [figure["title"] for figure in figures(result, "best").values()]
    assert titles == ["mean reward", "exact match", "F1"]


def test_an_unfinished_run_is_told(tmp_path: Path, run_command: Command) -> None:
    config = write_run(tmp_path / "run", short(), BETTER)
    (tmp_path / "run" / "summary.json").unlink()
    assert "The run is not finished" in run_command("evaluate", config.output, "--limit", 1).out


REFUSED: dict[str, tuple[Sequence[str], str]] = {
    "benchmark": (["--benchmark", "squad"], "--benchmark is 'squad'; expected NAME or NAME=PATH"),
    "no file": (["--benchmark", "nq=gone.parquet"], "--benchmark nq: no file gone.parquet"),
    "since": (["--since", "runs/a"], "--since was given without --quadrants; remove it, or add"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(
    geo: RunConfig, arguments: Sequence[str], message: str, refused: Refused
) -> None:
    assert message in refused("evaluate", geo.output, *arguments)


def test_prompts_too_long_are_refused_before_any_rollout(
    geo: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    file = tmp_path / "nq.jsonl"
    row = {"id": "a", "question": "Why " * 500, "golden_answers": ["x"]}
    file.write_text(json.dumps({**row, "id": "b", "question": "Why?"}) + "\n" + json.dumps(row))
    monkeypatch.setattr(
        "cotune.rollout.coordinator.Coordinator.rollout", lambda *_, **__: pytest.fail("rolled out")
    )
    error = refused("evaluate", geo.output, "--benchmark", f"nq={file}")
    assert "the prompt of task nq-a" in error


def test_a_split_without_questions_and_an_environment_that_takes_no_others(
    geo: RunConfig, tmp_path: Path
) -> None:
    environment = SingleTurnEnvironment({"train": [], "test": []}, "")
    with pytest.raises(ConfigError, match="--split test has no questions"):
        question_sets(geo, environment, EvaluationOptions())
    file = tmp_path / "nq.jsonl"
    file.write_text(json.dumps({"id": "a", "question": "q", "golden_answers": ["x"]}))

    class OnlyItsOwn(SingleTurnEnvironment):
        takes_any_tasks = False

    for world in (object(), OnlyItsOwn({"train": []}, "")):
        with pytest.raises(
            ConfigError, match=r"--benchmark nq: environment\.kind geo brings its own"
        ):
            question_sets(geo, cast("Any", world), EvaluationOptions(benchmarks=[f"nq={file}"]))


def test_intervals_count_questions_and_not_samples() -> None:
    (sampled,) = figures_of("best", "f1", "F1", {"sampled": [[0.0, 0.5], [0.5, 1.0]]}, ["", ""])
    assert (sampled.n, sampled.interval) == (2, (0.0, 1.0))


def test_figures_by_hand() -> None:
    values = {"greedy": [[1.0], [0.5], [0.0]]}
    (figure,) = figures_of("best", "f1", "F1", values, ["b", "a", "b"])
    assert (figure.mean, figure.n) == (pytest.approx(0.5), 3)
    assert list(figure.by_stratum.items()) == [
        ("a", {"mean": 0.5, "n": 1}),
        ("b", {"mean": 0.5, "n": 2}),
    ]

    def means(metric: str, *samples: list[float]) -> dict[str, float]:
        strata = ["x", "y"][: len(samples)]
        figures = figures_of("best", metric, metric, {"sampled": [*samples]}, strata)
        return {figure.statistic: figure.mean for figure in figures}

    rewards = [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]
    assert means("reward", *rewards) == pytest.approx({"avg@4": 0.625, "pass@4": 1})
    assert means("f1", *rewards) == {"avg@4": 0.625}
    # What is right in part has not passed; what is right and more has.
    partly = means("reward", [0.9, 0.0], [1.2, 0.2])
    assert partly == pytest.approx({"avg@2": 0.575, "pass@2": 0.5})
