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


WRONG = [
    ({"engine_args": {"trainer": {"save_freq": 1}}}, "training.engine_args.trainer.save_freq: set by training.save_every; remove it from " "engine_args"),
    (
        {"engine_args": {"+trainer.v1.trainer_mode": "async"}},
        "training.engine_args.+trainer.v1.trainer_mode: fixed: cotune runs on the sync trainer; "
        "remove it from engine_args",
    ),
    ({"schedule": "linear"}, "training.schedule linear is not supported by training.engine verl; change it, or set " "training.engine: trl"),
]  # fmt: skip


def test_a_job_does_not_write_into_rays_copy_of_what_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "working_dir_files" / "_ray_pkg_7a466fe53d68eb8f"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    with pytest.raises(ConfigError, match=r"^output: .*_ray_pkg_.* lies in the copy that Ray made"):
        Preflight(config(Path("runs"))).require(machine_checks=())
    assert list(copy.iterdir()) == []


def test_a_teacher_is_refused(tmp_path: Path) -> None:
    strategy = {"kind": "inspo", "distil_steps": 1}
    with pytest.raises(ConfigError) as caught:
        Preflight(config(tmp_path, {"strategy": strategy})).require(machine_checks=())
    assert str(caught.value) == (
        "strategy.distil_steps is not supported by training.engine verl; change it, or set training.engine: trl"
    )


@pytest.mark.parametrize(("training", "message"), WRONG)
def test_training_and_doctor_say_the_same(
    training: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checked = Preflight(config(tmp_path, **training))
    with pytest.raises(ConfigError) as caught:
        checked.require(machine_checks=())  # as plan and try do
    assert str(caught.value) == message
    assert message in [str(found) for _, found in checked.outcomes()]  # as doctor does


def test_a_run_file_for_verl_passes(tmp_path: Path) -> None:
    args = {"actor_rollout_ref.rollout.gpu_memory_utilization": 0.5, "trainer.of_whom": 1}
    (check,) = verl_engine.ENGINE.check(Preflight(config(tmp_path, engine_args=args)))
    assert check.look() is None  # whether veRL has a key is known where it is installed
