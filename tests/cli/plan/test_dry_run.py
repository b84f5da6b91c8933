"""`cotune train --dry-run`: two small steps of a run file that leave nothing behind."""

import dataclasses
import io
import json
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cotune.cli.app import app
from cotune.cli.plan import dry_run
from cotune.cli.plan.dry_run import few_questions, scaled_down, scaled_training
from cotune.config.run_checks import check_context
from cotune.config.run_file import RunConfig, load_config, parse_config
from cotune.environments.search import SearchEnvironment
from cotune.errors import ConfigError, Stopped
from cotune.methods.composed import ComposedOptions
from cotune.methods.gepa.gepa import GepaOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.registry import method_of
from cotune.types import Prompt
from tests.run_files import tiny, write

CONFIGS = Path(__file__).parents[3] / "configs"
P2O = CONFIGS / "p2o-deepmath-qwen3-4b-verl.yaml"
LLM = {"kind": "openai", "model": "m", "base_url": "http://h/v1", "api_key_env": "COTUNE_TEST_KEY"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made, and the working directory: none of the files is there."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTUNE_TEST_KEY", raising=False)
    return folder


def said(file: Path, *assignments: str, **options: Any) -> str:
    out = io.StringIO()
    dry_run.dry_run(file, Console(file=out, width=300), assignments, **options)
    return out.getvalue()


def search_file(folder: Path, **changes: Any) -> Path:
    """A run file of INSPO on data of one's own."""
    environment = {"kind": "search", "corpus": "corpus.jsonl"}
    environment |= {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    sections = {"environment": environment, "llm": LLM, "policy": {"path": "me/model"}, **changes}
    return write(folder / "run.yaml", tiny(folder / "out", sections))


def own_data(folder: Path, count: int = 40) -> None:
    (folder / "corpus.jsonl").write_text(json.dumps({"id": "1", "contents": '"Lima"\nIn Peru.'}))
    for split in ("train", "validation", "test"):
        rows = [{"question": f"{split} {i}" + "?" * i, "answers": ["Lima"]} for i in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_p2os_file_takes_two_steps_with_hints_between(tmp_path: Path, elsewhere: Path) -> None:
    before = set(tmp_path.rglob("*"))
    text = said(P2O, "threads=1")
    assert "policy: bundled:arithmetic for Qwen/Qwen3-4B" in text
    assert "data: the bundled world arithmetic; not here: hub:zwhe99/DeepMath-103K" in text
    assert "engine: trl for verl" in text
    assert "engine_args: without trainer.n_gpus_per_node" in text
    assert "llm: offline rules for Qwen/Qwen3-4B at http://127.0.0.1:8001/v1" in text
    assert "ran: 2 steps; mean rewards 0." in text
    assert "ran: 96 rollouts to train" in text
    assert "rollouts to evolve" in text
    assert "ran: hint_phase_ended before step 2: evaluations" in text
    assert "no evolution ran" not in text
    assert list(elsewhere.glob("cotune*")) == []
    assert set(tmp_path.rglob("*")) - before <= set(elsewhere.rglob("*"))  # torch's own
    assert not Path("runs").exists()


@pytest.mark.slow
def test_inspo_on_data_that_are_not_there_evolves(tmp_path: Path) -> None:
    file = search_file(tmp_path, training={"group_size": 2, "questions_per_step": 4})
    text = said(file)
    assert "data: the bundled world geo; not here: corpus.jsonl, train.jsonl" in text
    assert "llm: offline rules for m at http://h/v1; COTUNE_TEST_KEY, which the real run" in text
    assert "ran: 16 rollouts to train" in text
    assert "rollouts to verify" in text
    assert "ran: evolution before step 2: proposed" in text


def config_of(file: Path, *assignments: str) -> RunConfig:
    return load_config(file, assignments=assignments)


def test_data_that_are_there_are_the_files_own(tmp_path: Path) -> None:
    own_data(tmp_path)
    config = config_of(search_file(tmp_path))
    found, own, replaced = few_questions(config)
    assert isinstance(found, SearchEnvironment)
    assert own
    assert scaled_down(config, found, own, False)[0].policy.path == "bundled:geo"
    assert found.retriever is not None
    assert found.retriever.search(["Lima"], 1) == [['(Title: "Lima") In Peru.']]
    assert [len(found.tasks(s)) for s in ("train", "validation", "test")] == [8, 2, 2]
    assert all(task.question.startswith("train ") for task in found.tasks("train"))
    assert max(len(task.question) for task in found.tasks("train")) < 45
    assert replaced == ["data: 8 short questions of train.jsonl"]


def test_data_that_are_there_and_wrong_end_it_as_the_run(tmp_path: Path) -> None:
    own_data(tmp_path)
    (tmp_path / "test.jsonl").write_text('{"text": "no question"}\n')
    with pytest.raises(ConfigError, match=r'test\.jsonl, line 1: no field "question"'):
        said(search_file(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.parquet", b"garbage", r"environment\.test: .*test\.parquet"),
        ("corpus.jsonl", b"{oops", r"environment\.corpus: .*corpus\.jsonl, line 1: not JSON"),
    ],
)
def test_files_that_are_there_are_read_though_others_are_missing(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    own_data(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    (tmp_path / name).write_bytes(content)
    file = search_file(tmp_path)
    assignments = [f"environment.{name.split('.')[0]}={name}"]
    with pytest.raises(ConfigError, match=message) as caught:
        few_questions(config_of(file, *assignments))
    assert "\n" not in str(caught.value)


def test_rewards_are_imported_and_said_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"rewards: .*no_such_module"):
        said(search_file(tmp_path, rewards=["no_such_module:score"]))

    def stopped(config: RunConfig, *_: Any) -> Any:
        assert config.rewards == ()
        raise ConfigError("far enough")

    monkeypatch.setattr(dry_run, "measured_steps", stopped)
    out = io.StringIO()
    file = search_file(tmp_path, rewards=["exact_match"])
    with pytest.raises(ConfigError, match="far enough"):
        dry_run.dry_run(file, Console(file=out, width=300))
    assert "rewards: without exact_match; the bundled world scores" in out.getvalue()


def test_a_files_own_problems_are_read_by_its_own_columns(tmp_path: Path) -> None:
    rows = [{"q": f"{i} + 1?", "a": i + 1, "hard": i} for i in range(60)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    environment = {"kind": "math", "train": "m.jsonl", "validation": 3, "test": 3, "limit": 20}
    environment |= {"question_column": "q", "answer_column": "a"}
    environment |= {"difficulty_column": "hard", "difficulty_at_least": 10}
    raw = tiny(tmp_path / "out", {"environment": environment, "strategy": {"kind": "static"}})
    config = parse_config(raw, "test")
    found, own, _ = few_questions(config)
    tasks = found.tasks("train")
    assert len(tasks) == 8
    assert all(int(task.answers[0]) > 10 for task in tasks)
    scaled = scaled_down(config, found, own, False)[0]
    assert scaled.policy.path == "bundled:arithmetic"
    check_context(512, scaled.limits)


def test_a_server_that_answers_is_there(tmp_path: Path) -> None:
    answers = dry_run._answers  # pyright: ignore[reportPrivateUsage]
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/retrieve"
        assert answers(url)
    assert not answers(url)


def test_the_world_is_asked_under_the_files_protocol(tmp_path: Path) -> None:
    config = config_of(search_file(tmp_path))
    found, own, _ = few_questions(config)
    assert isinstance(found, SearchEnvironment)
    assert not own
    assert found.initial_instruction.startswith("Answer the given question. You must conduct")
    assert found.retriever is not None
    (passages,) = found.retriever.search(["Lima"], 3)
    assert any("Lima" in passage for passage in passages)
    check_context(1024, scaled_down(config, found, own, False)[0].limits)


def test_the_world_is_asked_in_the_files_layout(tmp_path: Path) -> None:
    for file in (search_file(tmp_path), P2O):
        found, own, _ = few_questions(config_of(file, "instruction={role: system}"))
        assert not own
        (task, *_) = found.tasks("train")
        messages = found.messages(task, Prompt("Be brief."))
        assert [message["role"] for message in messages] == ["system", "user"]


def test_a_long_instruction_is_shortened(tmp_path: Path) -> None:
    long = "<search> q </search> <information> </information> <answer> a </answer> " * 30
    config = config_of(search_file(tmp_path, instruction=long))
    scaled, replaced = scaled_down(config, *few_questions(config)[:2], False)
    assert scaled.instruction.text is not None
    assert len(scaled.instruction.text) < 900
    assert "instruction: a short one" in replaced[0]


@pytest.mark.parametrize(
    "options", [InspoOptions(), P2OOptions(), ComposedOptions(), GepaOptions()]
)
def test_what_is_no_size_stays(options: Any) -> None:
    changed = {
        "proposer": "history", "credit": "centred", "hinted_per_group": "half", "show_answers": True,
    }  # fmt: skip
    own = {f.name for f in dataclasses.fields(options)} & changed.keys()
    given = dataclasses.replace(options, **{name: changed[name] for name in own})
    scaled = method_of(given.kind).scaled(given)
    assert type(scaled) is type(options)
    assert all(getattr(scaled, name) == changed[name] for name in own)
    if isinstance(scaled, InspoOptions):
        assert (scaled.evolve_every, scaled.evolve_until, scaled.population_size) == (1, 2, 3)
        never = method_of("inspo").scaled(InspoOptions(evolve_every=0, prune_every=0))
        assert isinstance(never, InspoOptions)
        assert (never.evolve_every, never.prune_every) == (0, 0)


def test_a_last_stage_is_one_step_more_and_leaves_room_to_evolve(tmp_path: Path) -> None:
    stage = {"kind": "inspo", "distil_steps": 2, "distillation": {"kind": "filtered"}}
    text = said(write(tmp_path / "run.yaml", tiny(tmp_path / "out", {"strategy": stage})))
    assert "sizes: 3 steps" in text
    assert "ran: 3 steps" in text
    assert "ran: evolution before step 2" in text


def test_trainer_settings_stay_and_the_machines_do_not(tmp_path: Path) -> None:
    args = {"loss_type": "dapo", "max_grad_norm": 0.5, "use_vllm": True, "bf16": True}
    raw = tiny(tmp_path, {"training": {"engine_args": args, "kl": 0.01, "learning_rate": 3e-7}})
    training, without = scaled_training(parse_config(raw, "test").training, 0)
    assert training.engine_args == {"loss_type": "dapo", "max_grad_norm": 0.5}
    assert without == ["use_vllm", "bf16"]
    assert (training.kl, training.learning_rate, training.steps) == (0.01, 3e-7, 2)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"training": {"engine_args": {"lerning_rate": 1}}}, {}, r"lerning_rate: unknown field"),
        ({"strategy": {"kind": "sft"}}, {}, r"--dry-run runs steps of GRPO, but with .* sft"),
        ({}, {"ask_llm": True}, r"--ask-llm: the run file asks no LLM"),
        ({"llm": LLM}, {"ask_llm": True}, r"COTUNE_TEST_KEY"),
        ({"environment": {"kind": "single_turn"}, "dataset": {"path": "a.jsonl"}, "llm": LLM,
          "rewards": ["exact_match"]}, {}, r"environment\.kind is single_turn; expected geo, search"),
        ({"unknown": 1}, {}, r"unknown"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out", changes))
    with pytest.raises(ConfigError, match=message) as caught:
        said(file, **options)
    assert "\n" not in str(caught.value)


def test_several_processes_and_a_taken_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "there").touch()
    with pytest.raises(ConfigError, match="out"):
        said(file)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--dry-run is for one process"):
        said(file)


def test_a_stop_leaves_nothing(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(dry_run, "measured_steps", stopped)
    with pytest.raises(Stopped, match="nothing was kept"):
        said(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))
    assert list(elsewhere.glob("cotune*")) == []


def test_sigterm_leaves_nothing(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> Any:
        assert list(elsewhere.glob("cotune-dry-run-*"))
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    # Without the fix the signal would end the tests.
    monkeypatch.setattr(dry_run, "measured_steps", ended)
    with pytest.raises(Stopped, match="nothing was kept"):
        said(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))
    assert list(elsewhere.glob("cotune*")) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dry_run, "dry_run", lambda *given: asked.append(given))
    file = str(tmp_path / "run.yaml")
    given = ["train", file, "--dry-run", "--ask-llm", "--set", "seed=1"]
    assert CliRunner().invoke(app, given).exit_code == 0
    ((path, _, assignments, ask),) = asked
    assert (path, assignments, ask) == (Path(file), ["seed=1"], True)
    refused = CliRunner().invoke(app, ["train", file, "--ask-llm"])
    assert isinstance(refused.exception, ConfigError)
    assert "without --dry-run" in str(refused.exception)
