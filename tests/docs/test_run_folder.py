"""docs/reference/run-folder.md and metrics.md agree with the code, and with a real run, whose best/ serves."""

import ast
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from cotune.cli.train import train
from cotune.config.resuming import recorded_config
from cotune.config.run_file import parse_config
from cotune.experiments.evaluate.evaluation import evaluate_run
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.policy.local_policy import load_codec
from cotune.run.costs import CostRow
from cotune.run.events import EVENTS
from cotune.run.run_dir import RunDir, open_run
from tests.export.test_complete import check_renders_as_evaluated, tokenizer_of
from tests.policy.tiny import small_policy
from tests.run_files import environment_of, tiny, write

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = (REFERENCE / "run-folder.md").read_text(encoding="utf-8")
METRICS = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
SOURCE = Path(__file__).parents[2] / "src" / "cotune"
CELL = re.compile(r"`([^`]+)`")


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, heading, text = PAGE.partition(f"\n{title}\n")
    assert heading, title
    return re.split(r"\n#+ ", text)[0]


def items(title: str) -> list[tuple[str, str]]:
    """Return the names and the explanation of each item of the list below a heading."""
    return re.findall(r"^- (`.+?):(?: |<br>)(.+)$", section(title), re.MULTILINE)


def documented_fields(title: str) -> set[str]:
    """Return the names of the fields below a heading."""
    return {name for names, _ in items(title) for name in CELL.findall(names)}


def documented_events() -> dict[str, dict[str, str]]:
    """Return the explanation of each field, by kind of event."""
    events: dict[str, dict[str, str]] = {}
    for kind, cell in items("## events.jsonl"):
        parts = [re.fullmatch(r"`(\w+)`: (.+)", part) for part in cell.split("<br>")]
        events[kind.strip("`")] = {part[1]: part[2] for part in parts if part}
        assert all(parts) or cell.startswith("none: "), kind
    return events


def documented_metrics() -> set[str]:
    names = re.findall(r"^- (`.+?): ", METRICS, re.MULTILINE)
    return {name for cell in names for name in CELL.findall(cell)}


def test_the_page_has_the_fields_of_costs() -> None:
    assert documented_fields("## costs.jsonl") == {field.name for field in fields(CostRow)}


def find_record_calls() -> Iterator[tuple[str, str, set[str | None]]]:
    """Yield place, kind and fields of each call of a `record` or `event` with a constant kind."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", "")).lstrip("_")
            kind = node.args[0]
            if name in ("record", "event") and isinstance(kind, ast.Constant):
                place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                yield place, str(kind.value), {keyword.arg for keyword in node.keywords}


def test_the_page_has_every_kind_of_event_with_its_fields() -> None:
    calls = list(find_record_calls())
    event_fields = {kind: set(names) for kind, names in documented_events().items()}
    # The record itself marks where an attempt begins.
    assert {kind for _, kind, _ in calls} == event_fields.keys() - {"cut_back"}
    assert EVENTS.keys() <= event_fields.keys()
    wrong: list[str] = []
    for place, kind, names in calls:
        unpacks = None in names  # with **fields
        missing = event_fields[kind] - names
        if (names - {None}) - event_fields[kind] or (missing and not unpacks):
            wrong.append(f"{place}: {kind} has {sorted(map(str, names))}")
    assert not wrong


# ---- what a run really writes

STRATEGIES: dict[str, dict[str, Any]] = {
    "inspo": {
        "population_size": 3, "prune_every": 2, "evolve_every": 2, "evolve_until": 4,
        "verification_tasks": 2, "verification_rounds": 1,
    },
    "p2o": {"hints": {"hard_set_min_count": 2, "dev_size": 3, "budget": 12, "beam": 2}},
}  # fmt: skip
SECTIONS: dict[str, Any] = {
    "evaluation": {"every": 2},
    "training": {"steps": 4, "kl": 0.01},
    "logging": {"trajectories_every": 1, "report_to": ["tensorboard"]},
}  # fmt: skip


@pytest.fixture(scope="module", params=STRATEGIES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    folder = tmp_path_factory.mktemp(request.param)
    strategy = {"kind": request.param, **STRATEGIES[request.param]}
    sections = {**SECTIONS, "strategy": strategy, "policy": {"path": small_policy()}}
    file = write(folder / "run.yaml", tiny(folder / "out", sections))
    train(file, Console(file=io.StringIO()))
    return open_run(folder / "out")


def kind_of(run: RunDir) -> str:
    return run.read_config()["strategy"]["kind"]


def leaves(value: object, name: str = "") -> Iterator[str]:
    """Yield the dotted names in a JSON value; lists of objects count as one."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield name
        for part in value:
            yield from leaves(part, name)
    else:
        yield name


def fields_of(rows: Iterable[object]) -> set[str]:
    return {name for row in rows for name in leaves(row)}


@pytest.mark.slow
def test_events_of_a_run_have_the_documented_fields(run: RunDir) -> None:
    documented, kinds = documented_events(), set[str]()
    for event in run.read_events():
        names = event.keys() - {"time", "attempt", "step", "kind"}
        assert names == documented[event["kind"]].keys(), event
        kinds.add(event["kind"])
    by_method = {
        "inspo": {"instruction_born", "population", "evolution", "best_instruction"},
        "p2o": {"hard_samples", "hint_phase", "hint_progress", "hint_phase_ended"},
    }
    assert kinds >= {"run_started", "saved", "run_finished", "evaluated"} | by_method[kind_of(run)]


def find_undocumented(names: set[str]) -> set[str]:
    """Return the names that the page of metrics lacks; what stands there in <> is any word."""
    patterns = [re.sub(r"<\w+>", r"[\\w.]+", re.escape(name)) for name in documented_metrics()]
    return {name for name in names if not any(re.fullmatch(pattern, name) for pattern in patterns)}


@pytest.mark.slow
def test_metrics_of_a_run_are_documented(run: RunDir) -> None:
    names = {key for row in run.read_metrics() for key in row}
    method_metric = {"inspo": "inspo/evolution_accepted", "p2o": "p2o/hard"}[kind_of(run)]
    assert {method_metric, "reward_mean", "kl"} <= names
    assert find_undocumented(names) == set()


@pytest.mark.slow
def test_rollouts_of_a_run_have_the_documented_fields(run: RunDir) -> None:
    rows = [
        row for step, purpose in run.trajectory_files()
        for row in run.read_trajectories(step, purpose)
    ]  # fmt: skip
    purposes = set(
        re.findall(r'"(\w+)"', section("## trajectories/").partition("One rollout per line")[0])
    )
    assert {purpose for _, purpose in run.trajectory_files()} <= purposes
    flat = {
        name.partition(".")[0] if name.startswith("trained.") else name for name in fields_of(rows)
    }
    assert flat | {"reward_parts", "feedback", "teacher"} == documented_fields("## trajectories/")


@pytest.mark.slow
def test_the_other_files_of_a_run_are_documented(run: RunDir) -> None:
    folder = section("## The folder")
    for path in run.path.iterdir():
        assert f"`{path.name}{'/' if path.is_dir() else ''}`" in folder, path.name
    best = json.loads((run.best_path / "best.json").read_bytes())
    assert best.keys() == documented_fields("## best/")
    summary = run.read_summary() or {}
    names = documented_fields("## summary.json")
    (arm,) = summary["arms"].values()
    suffixes = ("_by_stratum", "_n", "_before")
    for key in (*summary, *arm):
        assert key in names or any(
            key.endswith(s) and key.removesuffix(s) in names for s in suffixes
        ), key


@pytest.mark.slow
def test_a_run_ends_with_a_folder_that_serves(run: RunDir, tmp_path: Path) -> None:
    """What loads it as a policy does so without the instruction in it."""
    best = run.best_path
    config = recorded_config(run)
    assert {
        "README.md", "best.json", "chat_template.jinja", "config.json", "generation_config.json",
        "instruction.txt", "model.safetensors", "serving.json", "tokenizer.json",
        "tokenizer_config.json",
    } == {path.name for path in best.iterdir()} - {"hint.txt"}  # fmt: skip
    check_renders_as_evaluated(run, config, environment_of(config), tokenizer_of("bundled:geo"))
    (arm,) = (run.read_summary() or {})["arms"].values()
    assert f"- trained, best instruction: {arm['em']:.3f}" in (best / "README.md").read_text(
        encoding="utf-8"
    )

    # Of rollouts under the best instruction: it would stand there twice.
    (result,) = evaluate_run(config, run, EvaluationOptions()).sets
    greedy = result.figures[0]
    assert (greedy.statistic, greedy.mean) == ("greedy", arm["em"])
    rows = run.read_trajectories(config.training.steps + 1, "evaluate_after")
    text: Any = AutoTokenizer.from_pretrained(best).decode(rows[0]["prompt_ids"])
    assert text.count(arm["best_instruction"]) == 1

    next_run = tiny(tmp_path / "next", {"policy": {"path": str(best)}})
    tokenizer = load_codec(parse_config(next_run, "the test").policy).tokenizer
    assert tokenizer.chat_template == tokenizer_of("bundled:geo").chat_template
