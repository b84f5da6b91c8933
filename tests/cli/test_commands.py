"""`cotune try` and `cotune plan` on the bundled policy, and whole runs through the commands."""

import contextlib
import io
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any
from unittest import mock

import pytest
from rich.console import Console

from cotune.cli.evaluate import try_run
from cotune.cli.plan import plan
from cotune.cli.train import _stoppable
from cotune.config.library_settings import quiet_libraries
from cotune.config.run_file import parse_config
from cotune.engines.joint import settings_of
from cotune.engines.run_start import opened_run
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError, RetrievalError, Stopped
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from tests.run_files import config_of, tiny, write


@pytest.fixture
def run_file(cwd: Path) -> Path:
    return write(cwd / "run.yaml", tiny(cwd / "out"))


def make_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=120), out


def test_rollouts_are_shown_with_their_outcome_and_nothing_is_written(run_file: Path) -> None:
    console, out = make_console()
    trajectories = try_run(run_file, console, count=2, greedy=True)
    text = out.getvalue()
    assert [t.task.id in text for t in trajectories] == [True, True]
    assert text.count("<|im_start|>user") == 2
    assert "[policy] " in text
    assert "[masked] " in text
    assert f"reward {trajectories[0].reward:.3g}" in text
    assert "2 rollouts: mean reward" in text
    assert [path.name for path in run_file.parent.iterdir()] == ["run.yaml"]


def test_a_field_can_be_set_and_the_split_chosen(run_file: Path) -> None:
    console, out = make_console()
    limits = ["limits.turns=1", "limits.turn_tokens=4"]
    trajectory, _ = try_run(run_file, console, 2, "test", assignments=limits)
    assert trajectory.task.id.startswith("geo-test-")
    assert len(trajectory.turns) == 1
    assert "stopped: " not in out.getvalue()
    assert "0 with an answer" in out.getvalue()
    text = " ".join(out.getvalue().split())
    assert "2 truncated" in text
    assert "100% of the rollouts were truncated, most of them by limits.turn_tokens; raise" in text
    assert text.count("answer: none (cut off)") == 2


def test_a_split_without_questions(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = TaskEnvironment.tasks
    stub = lambda env, split: () if split == "validation" else tasks(env, split)  # noqa: E731
    monkeypatch.setattr(TaskEnvironment, "tasks", stub)
    with pytest.raises(ConfigError, match="--split validation has no questions"):
        try_run(run_file, make_console()[0], 1, "validation", assignments=["evaluation.every=0"])


OPENAI = {
    "kind": "openai",
    "model": "m",
    "max_tokens": 100,
    "price_per_million_prompt_tokens": 1.0,
    "price_per_million_completion_tokens": 10.0,
}


def plan_text(tmp_path: Path, changes: dict[str, Any]) -> str:
    out = io.StringIO()
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out", changes))
    plan(file, Console(file=out, width=200))
    assert not (tmp_path / "out").exists()
    return out.getvalue()


def test_plan_of_an_offline_run(tmp_path: Path) -> None:
    text = plan_text(tmp_path, {"name": "[bold]odd[/]"})
    assert "[bold]odd[/]" in text
    # 24 rollouts × 3 turns × 24 tokens.
    assert "1,728" in text
    assert "offline rules; at most 2 proposals" in text


PRICES = {"price_per_million_prompt_tokens", "price_per_million_completion_tokens"}


def test_plan_prices_an_endpoint(tmp_path: Path) -> None:
    text = plan_text(tmp_path, {"llm": {**OPENAI, "budget": 0.5}})
    # Prompt: 2000 and 4000 of the environment + 4000 + 4 failures × 4 × (384 + 200) = 19344 characters.
    # 2 × (4836 × 1 + 100 × 10) per million.
    assert "m at api.openai.com; at most 2 proposals, at most 0.01 at the prices of llm" in text
    assert "stopped at the budget of 0.50" in text
    free = OPENAI | dict.fromkeys(OPENAI.keys() & PRICES, 0)
    assert "at unknown cost: llm.price" in plan_text(tmp_path, {"llm": free})


HUB: dict[str, Any] = {"dataset": {"name": "openai/gsm8k"}}
SINGLE_TURN: dict[str, Any] = {"environment": "single_turn", "dataset": {"path": "a.jsonl"}}


@pytest.mark.parametrize(
    ("changes", "offline"),
    [
        ({}, True),
        ({"policy": {"path": "Qwen/Qwen3-0.6B"}}, False),
        ({**SINGLE_TURN, "rewards": ["exact_match"]}, True),
        ({**SINGLE_TURN, **HUB, "rewards": ["exact_match"]}, False),
        # What code of one's own needs nobody knows: a judge's weights, say.
        ({**SINGLE_TURN, "rewards": ["mine:judge"]}, False),
        ({"strategy": {"kind": "inspo"}, "llm": "mine.py:Mine"}, False),
    ],
)
def test_only_a_run_that_fetches_nothing_is_kept_from_the_network(
    changes: dict[str, Any], offline: bool
) -> None:
    raw = tiny(Path("out"), {"strategy": {"kind": "static"}}) | changes
    with mock.patch.dict(os.environ):
        os.environ.pop("HF_HUB_OFFLINE", None)
        quiet_libraries(parse_config(raw, "test"))
        assert os.environ.get("HF_HUB_OFFLINE") == ("1" if offline else None)


def test_the_environments_precision_does_not_replace_the_run_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with mock.patch.dict(os.environ):
        quiet_libraries(config_of())
        assert "ACCELERATE_MIXED_PRECISION" not in os.environ


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal; a shell starts a program in the background with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_says_how_to_resume(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "out"
    before = signal.getsignal(number)
    for folder, message in (("", "before anything was written"), ("run", "cotune resume")):
        if folder:
            Record.create(run, {})
        with pytest.raises(Stopped, match=message), _stoppable(run):  # pyright: ignore[reportPrivateUsage]
            signal.raise_signal(number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("steps", "message"), [(0, "judge is down"), (1, "judge is down; then continue")]
)
def test_a_failure_under_way_says_how_to_go_on(tmp_path: Path, steps: int, message: str) -> None:
    run = Record.create(tmp_path / "out", {})
    for step in range(steps):
        run.metrics(step + 1, {"reward_mean": 0.5})
    with (
        pytest.raises(RetrievalError) as caught,
        _stoppable(run.path),  # pyright: ignore[reportPrivateUsage]
    ):
        raise RetrievalError("judge is down")
    assert str(caught.value) == (f"{message}: cotune resume {run.path}" if steps else message)
    # `train` did not begin the run that is there.
    with (
        pytest.raises(RetrievalError, match=r"^judge is down$"),
        _stoppable(run.path, new=True),  # pyright: ignore[reportPrivateUsage]
    ):
        raise RetrievalError("judge is down")


def test_of_several_trainings_into_one_folder_exactly_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    racers, output, check_free = 3, tmp_path / "out" / "run", RunDir.check_free
    creating, ended = Barrier(racers), Barrier(racers)

    def check_and_wait(folder: Path) -> None:
        check_free(folder)
        with contextlib.suppress(BrokenBarrierError):
            creating.wait(0.3)  # those that get so far write at the same time

    def race(name: str) -> str:
        config = parse_config(tiny(output) | {"name": name}, "test")
        try:
            with opened_run(settings_of(config, Console(quiet=True)), 1, resume=False) as run:
                run.metrics(1, {"reward_mean": 0.5})
                ended.wait(60)
        except ConfigError as error:
            ended.wait(60)
            return str(error)
        return "trained"

    monkeypatch.setattr(RunDir, "check_free", check_and_wait)
    monkeypatch.setattr("cotune.run.json_files._PATIENCE", 0.0)
    with ThreadPoolExecutor(racers) as pool:
        results = dict(zip("012", pool.map(race, "012"), strict=True))
    (winner,) = [name for name, result in results.items() if result == "trained"]
    del results[winner]
    refusals = re.compile("being trained by another|resume the run|holds an earlier run")
    assert all(refusals.search(error) for error in results.values())
    # The folder is the winner's alone.
    assert RunDir.open(output).read_config()["name"] == winner
    assert len(RunDir.open(output).read_metrics()) == 1
