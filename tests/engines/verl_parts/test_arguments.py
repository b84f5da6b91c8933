"""What the preflight says of a run file on veRL, where veRL need not be installed."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.verl import verl_engine
from cotune.errors import ConfigError


@pytest.fixture(autouse=True)
def without_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl_engine, "installed", lambda name: None)


def config(folder: Path, changed: dict[str, Any] | None = None, **training: Any) -> RunConfig:
    shared = {"engine": "verl", "mini_batches": 1, "schedule": "constant"}
    raw = {
        "output": str(folder / "run"),
        "policy": {"path": "bundled:geo"},
        "environment": {"kind": "geo", "train": 8, "validation": 2, "test": 2},
        "strategy": {"kind": "static"},
        "training": shared | training,
    }
    return parse_config(raw | (changed or {}), "the test")


def test_a_job_does_not_write_into_rays_copy_of_what_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_7a466fe53d68eb8f"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    with pytest.raises(ConfigError, match=r"^output: .*_ray_pkg_.* lies in the copy that Ray made"):
        Preflight(config(Path("runs"))).require(machine_checks=())
    assert list(copy.iterdir()) == []


@pytest.mark.parametrize(
    ("changed", "training", "message"),
    [
        (
            {},
            {"engine_args": {"trainer": {"save_freq": 1}}},
            "training.engine_args.trainer.save_freq: set by training.save_every; remove it from engine_args",
        ),
        (
            {},
            {"engine_args": {"actor_rollout_ref": {"rollout": {"top_p": 0.9}}}},
            "training.engine_args.actor_rollout_ref.rollout.top_p: set by cotune, which samples from the whole distribution",
        ),
        ({}, {"engine_args": {"+data.shuffle": True}}, "training.engine_args.+data.shuffle: set by seed"),
        ({}, {"frozen": True}, "training.frozen is not supported by training.engine verl"),
        (
            {"policy": {"path": "bundled:geo", "lora": {"dropout": 0.1}}},
            {},
            "policy.lora.dropout is not supported by training.engine verl",
        ),
        (
            {},
            {"questions_per_step": 6, "group_size": 4, "mini_batches": 4, "micro_batch_size": 6},
            "training.mini_batches 4, no divisor of questions_per_step, is not supported",
        ),
        ({}, {"schedule": "linear"}, "training.schedule linear is not supported by training.engine verl"),
        (
            {"strategy": {"kind": "inspo", "distil_steps": 1}},
            {},
            "strategy.distil_steps is not supported by training.engine verl",
        ),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(
    changed: dict[str, Any], training: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        Preflight(config(tmp_path, changed, **training)).require(machine_checks=())
    assert str(error.value).startswith(message)


def test_a_run_file_for_verl_passes(tmp_path: Path) -> None:
    args = {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.5, "trainer.of_whom": 1}
    (check,) = verl_engine.ENGINE.check(Preflight(config(tmp_path, engine_args=args)))
    assert check.look() is None  # whether veRL has a key is known where it is installed
