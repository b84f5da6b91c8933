"""The registry: what it lists, and a method from a package, from its run file to a suite's table."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.train import train
from cotune.config.run_file import dump_config, parse_config
from cotune.errors import ConfigError
from cotune.methods.method import Context, Method
from cotune.methods.registry import BUILT_IN, kinds, method_of
from cotune.methods.static import StaticStrategy
from cotune.protocols import Strategy
from cotune.run.run_dir import RunDir
from cotune.types import Distillation
from tests.helpers import Events, ScriptedRollout, install, make_tasks, raises_line, run
from tests.policy.tiny import small_policy
from tests.run_files import config_of, tiny, write
from tests.scripted import ScriptedLLM

TOY = "tests.methods.toy_method"
SMALL: dict[str, Any] = {
    "strategy": {"kind": "bandit", "ending": "Check it."},
    "environment": {"train": 4, "validation": 1, "test": 2},
    "training": {"steps": 1, "questions_per_step": 2},
    "evaluation": {"before": False},
}


@pytest.fixture
def bandit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that adds a method."""
    install(tmp_path / "site", monkeypatch, "cotune.methods", f"bandit = {TOY}:METHOD")


def test_each_method_says_what_it_is() -> None:
    assert list(BUILT_IN) == ["static", "inspo", "p2o", "gepa", "fst"]
    methods = {kind: method_of(kind) for kind in BUILT_IN}
    for kind, method in methods.items():
        assert method.options().kind == kind
        assert method.label
        assert method.about
        assert bool(method.evolves) == method.needs_llm
    assert len({method.label for method in methods.values()}) == len(BUILT_IN)


def test_static_does_nothing() -> None:
    strategy: Strategy = StaticStrategy("Answer.")
    rollout, events = ScriptedRollout(lambda _: 0.5), Events()
    metrics = run(strategy, rollout, ScriptedLLM([]), events, range(1, 5), make_tasks(3))
    assert metrics == [{}] * 4
    assert events.rows == []
    assert {purpose for purpose, _ in rollout.calls} == {"train"}
    assert strategy.best_prompt().instruction == "Answer."
    assert strategy.best_instruction_id() == "i0"
    strategy.settle("i1")
    assert (strategy.choice(), strategy.best_hint()) == (None, "")
    assert (strategy.checks_uplift, strategy.has_teacher) == (False, False)
    assert strategy.distillation == Distillation(ratio="original")


EVOLVING = ["inspo", "gepa", "fst"]


@pytest.mark.parametrize("kind", EVOLVING)
@pytest.mark.parametrize(("start", "message"), [("  ", "blank"), ("Do <ins_1> it.", "<ins_1>")])
def test_an_instruction_that_cannot_evolve_is_refused(kind: str, start: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(kind, start)


@pytest.mark.parametrize("kind", ["static", "p2o", *EVOLVING])
def test_the_state_of_another_instruction_is_refused(kind: str) -> None:
    state = json.loads(json.dumps(build(kind, "One of them.").state_dict()))
    build(kind, "One of them.").load_state_dict(state)
    with pytest.raises(ConfigError, match=r"'One of them\.'|expected the same|initial instruction"):
        build(kind, "Another one.").load_state_dict(state)


def build(kind: str, instruction: str) -> Strategy:
    method = method_of(kind)
    return method.build(method.options(), Context(instruction=instruction, tasks=make_tasks(400)))


@pytest.mark.usefixtures("bandit")
def test_a_package_adds_a_method_to_the_run_file() -> None:
    config = config_of(**SMALL)
    assert isinstance(config.method, Method)
    assert parse_config(dump_config(config), "test") == config
    assert dump_config(config)["strategy"] == {"kind": "bandit", "ending": "Check it."}
    assert kinds() == [*BUILT_IN, "bandit"]


@pytest.mark.usefixtures("bandit")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strategy": {"kind": "bandit", "endnig": "x"}}, r"strategy\.endnig: unknown field"),
        ({"strategy": {"kind": "bandit", "ending": 3}}, r"strategy\.ending: .*string"),
        ({"strategy": {"kind": "bandti"}}, r"strategy\.kind: 'bandti' is unknown; .* \(did you mean bandit\?\)"),
        ({"training": {"questions_per_step": 1}}, r"questions_per_step is 1; a bandit needs two groups"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_one_line(changes: dict[str, Any], message: str) -> None:
    with raises_line(match=message):
        config_of(**{**SMALL, **changes})


def test_a_package_that_adds_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = ("broken = no_such_package:METHOD", f"other = {TOY}:METHOD")
    install(tmp_path / "site", monkeypatch, "cotune.methods", *points)
    with pytest.raises(ConfigError, match=r"^strategy\.kind: 'broken' cannot be loaded"):
        method_of("broken")
    with pytest.raises(ConfigError, match=r"'nobody' is unknown; expected one of 'static', .*'oth"):
        method_of("nobody")


@pytest.mark.slow
@pytest.mark.usefixtures("bandit")
def test_it_is_trained_and_reported(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=150)
    small = {**SMALL, "policy": {"path": small_policy()}}
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "run", small))
    record = RunDir.open(train(file, console))
    assert [row["bandit/observed"] for row in record.read_metrics()] == [4]
    assert "bandit on geo" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "Check it." in record.report_path.read_text(encoding="utf-8")
