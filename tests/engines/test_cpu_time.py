"""The time of a run without a GPU, projected from a layer and the head."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.config.run_file import parse_config
from cotune.engines import cpu_time as module
from cotune.engines.cpu_time import cpu_time
from cotune.policy import precision
from tests.run_files import tiny


def config(tmp_path: Path, **training: Any) -> Any:
    limits = {
        "prompt_tokens": 100, "turns": 2, "turn_tokens": 20, "trajectory_tokens": 50,
    }  # fmt: skip
    return parse_config(tiny(tmp_path / "run", {"limits": limits, "training": training}), "test")


def test_the_projection_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # One layer and the head take (2, 0.5, 0.25) seconds, each layer (1, 0.25, 0.125) of them.
    def timed(config: Any, raw: Any, dtype: str, layers: int, rows: int) -> tuple[float, ...]:
        assert rows == 10
        return 1.0 + layers, 0.25 + 0.25 * layers, 0.125 + 0.125 * layers

    monkeypatch.setattr(module, "_timed", timed)
    batch = {"steps": 1, "questions_per_step": 6, "group_size": 4, "micro_batch_size": 4}
    batch |= {"rows_per_call": 10, "mini_batches": 1, "kl": 0}
    given = config(tmp_path, **batch)
    layers = module.read_shape(module.find_config(given.policy.path) or {}).layers
    found = cpu_time(given, {"train": 24, "evaluate": 10})
    token, fed, learnt = 1.0 + layers, 0.25 + 0.25 * layers, 0.125 + 0.125 * layers
    # Three calls and one, of two turns of 20 tokens; the rest of 150 are prompts and observations.
    assert found.rollouts == pytest.approx(4 * 40 * token + 34 * 110 * fed)
    assert found.updates == pytest.approx(24 * 150 * learnt)
    # A third more for old log-probabilities, and for the KL term's reference.
    both = cpu_time(config(tmp_path, **batch | {"mini_batches": 2, "kl": 0.1}), {"train": 24})
    assert both.updates == pytest.approx(24 * 150 * learnt * 5 / 3)
    frozen = cpu_time(config(tmp_path, **batch, frozen=True), {"train": 24, "evaluate": 10})
    assert frozen.updates == 0


def test_a_policy_is_timed_without_touching_the_random_state(tmp_path: Path) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    found = cpu_time(config(tmp_path), {"train": 8})
    assert 0 < found.rollouts < 600
    assert 0 < found.updates < 600
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_policies_that_cannot_be_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 10)
    with pytest.raises(ValueError, match="parameters; cotune plan --steps times it"):
        cpu_time(config(tmp_path), {"train": 8})
    elsewhere = config(tmp_path).model_copy(
        update={"policy": config(tmp_path).policy.model_copy(update={"path": "org/unknown"})}
    )
    with pytest.raises(ValueError, match="org/unknown is not on this machine"):
        cpu_time(elsewhere, {"train": 8})


def test_emulated_bfloat16_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bfloat16", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"training\.precision is bf16, which this CPU emulates"):
        cpu_time(config(tmp_path, precision="bf16"), {"train": 8})
