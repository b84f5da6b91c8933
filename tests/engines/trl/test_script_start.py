"""A script's `JointTrainer` before its first step: what is refused, and how its run folder is begun."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import cotune
from cotune.engines.joint import RunSettings
from cotune.engines.run_start import opened_run
from cotune.engines.trl.script import ask_llm
from cotune.errors import ConfigError, LLMError
from cotune.methods.fst import Gepa
from cotune.methods.inspo.inspo import Inspo, InspoOptions
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.run.record import Record
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from tests.config.test_run_checks import environment
from tests.engines.trl.script_runs import begin
from tests.engines.trl.setup import config
from tests.policy.tiny import small_policy
from tests.scripted import ScriptedLLM

LIMITS = cotune.Limits(turn_tokens=64, trajectory_tokens=640, prompt_tokens=384)


@pytest.fixture(scope="module")
def geo() -> GeoEnvironment:
    return GeoEnvironment(GeoOptions(train=4, validation=3, test=3))


# ---- methods


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: cotune.INSPO(window=cast(Any, "two")), r"^INSPO: window: expected a valid int"),
        (lambda: cotune.INSPO(instruction=cast(Any, 3)), "INSPO: instruction is of type int"),
        (lambda: cotune.INSPO(llm="sk-" + "a1B2" * 8), "INSPO: llm: model looks like a key"),
        (lambda: cotune.INSPO(llm=cast(Any, cotune.RulesLLM)), r"INSPO: llm is the class RulesLLM; .* an object with complete"),
        (lambda: cotune.INSPO(llm=cast(Any, cotune.OpenAIOptions)), "INSPO: llm is the class OpenAIOptions"),
        (lambda: cotune.INSPO(llm="/"), "INSPO: llm is the folder '/'; expected a file of texts, or a model"),
        (lambda: cotune.INSPO(llm=cast(Any, 3)), "INSPO: llm is of type int"),
        (lambda: cotune.INSPO(llm=cast(Any, {"model": "m", "api_key": "a1B2" * 8})), "INSPO: llm is of type dict"),
        (lambda: cotune.Static(llm=ScriptedLLM([])), "Static asks no LLM; remove llm"),
    ],
)  # fmt: skip
def test_what_a_method_refuses(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        make()
    assert "a1B2" not in str(error.value)


def test_a_methods_options_are_those_of_a_run_file() -> None:
    assert cotune.INSPO(window=2).options == InspoOptions(window=2)
    hints = P2OOptions(successes_below=3, hinted_per_group="half")
    assert cotune.P2O(successes_below=3, hinted_per_group="half").options == hints
    assert cotune.INSPO(llm="m" * 300).llm == cotune.OpenAIOptions(model="m" * 300)
    assert cotune.INSPO(llm="gpt-4.1").llm == cotune.OpenAIOptions(model="gpt-4.1")


def test_only_an_llm_that_must_answer_is_advised_to_be_optional(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(options: object) -> None:
        raise LLMError("it is down")

    monkeypatch.setattr("cotune.engines.trl.script.make_first_call", fail)
    with pytest.raises(ConfigError, match=r"\(it is down\); correct llm, or set optional=True"):
        ask_llm(cotune.OpenAIOptions(model="m"), Record())
    ask_llm(cotune.OpenAIOptions(model="m", optional=True), Record())
    (warning,) = caplog.messages
    assert warning.endswith("(it is down); correct llm")


# ---- a trainer


def started(folder: Path, arguments: dict[str, Any], **changes: Any) -> cotune.JointTrainer:
    args = config(folder, max_completion_length=640, **changes)
    arguments = {"method": cotune.Static(), "limits": LIMITS, **arguments}
    return cotune.JointTrainer(small_policy(), args=args, **arguments)


@pytest.mark.parametrize(
    ("method", "kind", "strategy"),
    [(cotune.INSPO, "inspo", Inspo), (cotune.P2O, "p2o", P2O), (cotune.GEPA, "gepa", Gepa)],
)
def test_in_a_bundled_world_a_method_needs_no_llm(
    method: Any, kind: str, strategy: type[Any], geo: GeoEnvironment, tmp_path: Path
) -> None:
    trainer = started(tmp_path, {"method": method(), "environment": geo})
    assert type(trainer.joint.coordinator.strategy) is strategy
    assert trainer.settings.record["strategy"]["kind"] == kind
    assert trainer.settings.llm_name == "offline rules"
    assert trainer.best_instruction == geo.initial_instruction
    assert list(tmp_path.iterdir()) == []  # nothing is written before training
    with pytest.raises(ConfigError, match=r": llm is missing.*\(llm=\"gpt-4\.1\"\)"):
        started(tmp_path, {"method": method(), "environment": environment("Who?")})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"method": cotune.INSPO(instruction="Answer.")}, "instruction names no <search>"),
        ({"method": cotune.INSPO(llm=cotune.OpenAIOptions(model="m"))}, "OPENAI_API_KEY is not set"),
        ({"reward_funcs": 3}, "rewards: int is no function; expected a function or"),
        ({"limits": replace(LIMITS, prompt_tokens=480)}, r"480 \+ 640 = 1120, but the policy's context holds 1024"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_a_trainer_refuses(
    arguments: dict[str, Any],
    expected: str,
    geo: GeoEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=expected):
        started(tmp_path, {"environment": geo, **arguments})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for output, problem in ((f"{tmp_path}/file", ": .* is a file"), ("", " is ''; expected")):
        with pytest.raises(ConfigError, match=f"^GRPOConfig.output_dir{problem}"):
            started(tmp_path, {"environment": geo}, output_dir=output)


@pytest.mark.parametrize(("rollouts", "rows"), [(6, 510), (600, 600)])
def test_no_group_is_cut_between_calls_of_reward_functions(
    rollouts: int, rows: int, tmp_path: Path
) -> None:
    training = begin(tmp_path, per_device_train_batch_size=rollouts)
    assert training.joint.coordinator.settings.rows_per_call == rows


# ---- the run folder


def settings(folder: Path) -> RunSettings:
    return RunSettings(folder=folder / "cotune", record={"name": "mine"})


def log_a_loss(record: Record) -> None:
    record.metrics(1, {"loss": 1.0})


def save(record: Record) -> None:
    record.event("saved", 1)


def roll_out_twice(record: Record) -> None:
    for step in (1, 2):
        record.step = step
        record.count("train", 8, 80)


@pytest.mark.parametrize("train", [log_a_loss, save, roll_out_twice])
def test_a_folder_is_begun_once(tmp_path: Path, train: Callable[[Record], None]) -> None:
    for _ in range(2):  # nothing was trained: it may begin again
        with opened_run(settings(tmp_path), 4, resume=False) as record:
            record.begin_attempt(None)
            record.event("run_started", 0)
    with opened_run(settings(tmp_path), 4, resume=True) as record:
        record.begin_attempt(None)
        train(record)
    events = record.events_path.read_bytes()
    with (
        pytest.raises(ConfigError, match=r"resume_from_checkpoint=True.*output_dir"),
        opened_run(settings(tmp_path), 4, resume=False),
    ):
        pass
    assert record.events_path.read_bytes() == events
