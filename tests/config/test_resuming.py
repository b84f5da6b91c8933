"""Which fields may change on a resume, and what is said of those that did."""

import sys
from pathlib import Path
from typing import Any

import pytest

from cotune.config.resuming import (
    changes,
    check_resumable,
    identity,
    open_trained,
    recorded_config,
    resumed_config,
)
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.errors import ConfigError
from cotune.run.checkpoints import save_state
from cotune.run.record import Record
from tests.helpers import raises_line
from tests.run_files import config_of, tiny


class Folder:
    """A run folder of a tiny run file, with checkpoints of some optimizer steps."""

    def __init__(self, path: Path, *checkpoints: int, **changes: Any):
        self.config = parse_config(tiny(path, changes), "test")
        self.run = Record.create(path, dump_config(self.config))
        for step in checkpoints:
            checkpoint = self.run.checkpoints_path / f"checkpoint-{step}"
            checkpoint.mkdir(parents=True)
            save_state(checkpoint, {"batches": step // self.config.training.mini_batches})

    def resume(self, *assignments: str) -> RunConfig:
        return resumed_config(self.run, self.config, assignments)


def test_what_is_recorded_is_not_checked_as_a_new_run_file(tmp_path: Path) -> None:
    raw = tiny(tmp_path / "out")
    raw["limits"] = {"trajectory_tokens": 64, "prompt_tokens": 384}  # a turn has more by default
    config = parse_config(raw, "a new run")
    run = Record.create(tmp_path / "out", dump_config(config))
    assert recorded_config(run) == config
    with pytest.raises(ConfigError, match=r"run\.yaml with --set: logging: holds a key"):
        recorded_config(run, ["logging=hf_" + "aBcDe" * 6])


def test_what_was_set_is_validated_and_written_nowhere_yet(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out", 1, 2)
    before = folder.run.config_path.read_bytes()
    assert folder.resume("training.steps=9", "evaluation.every=2").training.steps == 9
    with pytest.raises(ConfigError, match=r"run\.yaml with --set: training\.stepz: unknown field"):
        folder.resume("training.stepz=9")
    with pytest.raises(ConfigError, match="limits is fixed once a run has started"):
        folder.resume("limits.turns=2")
    assert folder.run.config_path.read_bytes() == before


def test_steps_that_are_trained_cannot_be_taken_back(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out", 2, 10, training={"steps": 8, "mini_batches": 2})
    assert folder.resume("training.steps=5").training.steps == 5
    with pytest.raises(ConfigError, match=r"training\.steps is 4, but 5 are trained"):
        folder.resume("training.steps=4")
    assert Folder(tmp_path / "other").resume("training.steps=1").training.steps == 1


BUDGET = {"training": {"rollout_budget": 12}}
SPENT = {"arms": {"inspo": {"ended_early": "training.rollout_budget is spent"}}}


@pytest.mark.parametrize(
    ("checkpoints", "changes", "summary", "best", "assignment", "goes_on"),
    [
        ([1], BUDGET, {}, True, None, False),
        ([1], BUDGET, {}, True, "training.steps=3", False),
        ([1], BUDGET, {}, True, "evaluation.every=1", False),
        ([1], BUDGET, {}, True, "training.rollout_budget=10", False),
        ([1], BUDGET, {}, True, "training.steps=4", True),
        ([1], BUDGET, {}, True, "training.rollout_budget=13", True),
        ([1], BUDGET, {}, True, "training.rollout_budget=null", True),
        # Where the budget is spent, steps are not what the run lacks.
        ([1], BUDGET, SPENT, True, "training.steps=9", False),
        ([1], BUDGET, SPENT, True, "training.rollout_budget=20", True),
        # More steps were asked for by a resume that stopped before it began.
        ([1], {}, {"asked_steps": 2, "rollout_budget": None}, True, None, True),
        # A best policy that is lost is written again; without a checkpoint nothing begins anew.
        ([3], {}, {}, False, None, True),
        ([], {}, {}, False, None, False),
        ([], {"training": {"save_every": 0}}, {}, True, "training.steps=9", False),
    ],
)
def test_a_finished_run_needs_more_to_do(
    checkpoints: list[int],
    changes: dict[str, Any],
    summary: dict[str, Any],
    best: bool,
    assignment: str | None,
    goes_on: bool,
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path / "out", *checkpoints, **changes)
    folder.run.write_summary({"name": "tiny", **summary})
    if best:
        folder.run.best_path.mkdir()
        (folder.run.best_path / "best.json").write_text("{}")
    assignments = [assignment] if assignment else []
    if goes_on:
        assert (folder.resume(*assignments) == folder.config) == (assignment is None)
    else:
        with pytest.raises(ConfigError, match="this run is finished; see its report"):
            folder.resume(*assignments)


def test_modules_in_the_current_folder_are_found_again(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(cwd / "out", 1)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(cwd))])
    open_trained(folder.run.path)
    assert str(cwd) in sys.path


KEY = "a-secret-of-no-known-form"
ENDPOINT = {"kind": "openai", "model": KEY, "api_key_env": None}


def test_what_the_optimizers_state_stands_on_may_not_change() -> None:
    was = identity(config_of(training={"engine_args": {"adam_beta1": 0.8, "epsilon": 0.3}}))
    now = identity(config_of(training={"engine_args": {"optim": "sgd", "epsilon": 0.4}}))
    assert set(was.items()) ^ set(now.items()) == {
        ("training.engine_args.adam_beta1", "0.8"),
        ("training.engine_args.optim", '"sgd"'),
    }


def test_a_resume_may_change_what_the_run_does_not_stand_on() -> None:
    changed = config_of(
        name="longer", training={"steps": 9, "kl": 0.1}, evaluation={"every": 2}, llm=ENDPOINT
    )
    check_resumable(config_of(), changed, "run.yaml with --set")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": {"evolve_every": 3}}, "strategy is fixed once a run has started"),
        ({"seed": 1}, "seed is fixed"),
        ({"policy": {"dtype": "bfloat16"}}, "policy is fixed"),
        ({"environment": {"train": 9}}, "environment is fixed"),
        ({"limits": {"turns": 2}}, "limits is fixed"),
        ({"training": {"mini_batches": 2}}, "training.mini_batches is fixed"),
        ({"training": {"group_size": 4}}, "training.group_size is fixed"),
        ({"output": "elsewhere"}, "output is fixed"),
    ],
)
def test_what_a_resume_may_not_change_is_refused_with_what_it_may(
    change: dict[str, Any], message: str
) -> None:
    with raises_line(match=f"^run.yaml with --set: {message}"):
        check_resumable(config_of(), config_of(**change), "run.yaml with --set")


def test_what_changed_is_said_with_what_it_was() -> None:
    was = dump_config(config_of())
    now = dump_config(config_of(training={"steps": 5, "rollout_budget": 99}, threads=None))
    assert changes(was, now) == {
        "threads": [1, None], "training.rollout_budget": [None, 99], "training.steps": [3, 5],
    }  # fmt: skip
    assert changes(was, was) == changes({}, {}) == {}


def test_what_may_hold_a_key_is_named_and_not_shown() -> None:
    was = dump_config(config_of(llm={"kind": "rules"}))
    now = dump_config(config_of(llm=ENDPOINT, training={"engine_args": {"hub_token": KEY}}))
    changed = changes(was, now)
    assert set(changed.values()) == {None}
    assert {"llm.kind", "llm.model", "training.engine_args.hub_token"} <= changed.keys()


def search_sections(url: str, **fields: Any) -> dict[str, Any]:
    """Sections of a run on a search environment."""
    environment = {"kind": "search", "retriever": {"url": url}, **fields}
    return {"environment": environment, "dataset": {"path": "questions.jsonl"}, "llm": ENDPOINT}


def test_a_retrieval_server_may_have_moved() -> None:
    old, new = search_sections("http://a:8000/retrieve"), search_sections("http://b:8000/retrieve")
    was, now = config_of(**old), config_of(**new)
    check_resumable(was, now, "run.yaml")
    assert changes(dump_config(was), dump_config(now)) == {
        "environment.retriever.url": ["http://a:8000/retrieve", "http://b:8000/retrieve"]
    }
    assert identity(was) == identity(now)
    wider = config_of(**search_sections("http://a:8000/retrieve", top_k=5))
    with pytest.raises(ConfigError, match="environment is fixed"):
        check_resumable(was, wider, "run.yaml")
    local = old | {"environment": {"kind": "search", "corpus": "c.jsonl"}}
    with pytest.raises(ConfigError, match="environment is fixed"):
        check_resumable(was, config_of(**local), "run.yaml")
