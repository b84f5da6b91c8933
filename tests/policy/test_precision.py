"""The type that a policy is loaded and trained in."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError
from cotune.policy import precision
from cotune.policy.policy_files import PolicyConfig
from cotune.policy.precision import (
    autocast,
    casting,
    native_bfloat16,
    rounding_notice,
    weights_dtype,
)
from tests.run_files import tiny

LORA = {"lora": {"rank": 2}}


@pytest.mark.parametrize(
    ("policy", "requested", "native", "expected"),
    [
        # With a GPU the trainer's default stays.
        ({}, "auto", None, ("auto", None)),
        ({}, "fp32", None, ("float32", False)),
        ({}, "bf16", None, ("auto", True)),
        ({}, "auto", True, ("auto", False)),
        ({}, "auto", False, ("float32", False)),
        ({"dtype": "bfloat16"}, "auto", False, ("bfloat16", False)),
        ({}, "fp32", True, ("float32", False)),
        ({}, "bf16", True, ("auto", True)),
        (LORA, "bf16", True, ("bfloat16", False)),
        (LORA | {"dtype": "float32"}, "bf16", True, ("float32", False)),
        (LORA, "auto", True, ("auto", False)),
    ],
)
def test_types_of_weights_and_computation(
    policy: dict[str, Any],
    requested: Any,
    native: bool | None,
    expected: tuple[str, bool | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: native is None)
    monkeypatch.setattr(precision, "native_bfloat16", lambda: native)
    options = PolicyConfig.model_validate(policy)
    assert (weights_dtype(options, requested), autocast(options, requested)) == expected


@pytest.mark.parametrize(
    ("requested", "bf16", "on_cpu", "on_gpu"),
    [("auto", None, False, True), ("fp32", None, False, False), ("bf16", None, True, True),
     ("auto", False, False, False), ("auto", True, True, True)],
)  # fmt: skip
def test_outside_of_a_trainer_its_autocast_is_opened(
    requested: Any, bf16: bool | None, on_cpu: bool, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for gpu, expected in ((False, on_cpu), (True, on_gpu)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        context = casting(PolicyConfig(), requested, None if bf16 is None else {"bf16": bf16})
        assert isinstance(context, partial)
        assert context.keywords == {"enabled": expected}
        assert context.args == ("cuda" if gpu else "cpu", torch.bfloat16)


def run_file(tmp_path: Path, **sections: Any) -> RunConfig:
    return parse_config(tiny(tmp_path / "run", sections), "test")


def test_types_that_a_run_file_and_the_processor_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The reference policy has the policy's type.
    config = run_file(tmp_path, training={"kl": 0.1}, policy={"dtype": "bfloat16"})
    assert grpo_config(config, tmp_path).model_init_kwargs == {
        "dtype": "bfloat16",
        "device_map": None,
    }
    # Contradictions are refused.
    with pytest.raises(ConfigError, match=r"is fp32, but policy\.dtype is bfloat16; expected"):
        run_file(tmp_path, training={"precision": "fp32"}, policy={"dtype": "bfloat16"})
    # fp16 is computed in fp16.
    half = casting(PolicyConfig(), "auto", {"fp16": True})
    assert isinstance(half, partial)
    assert (half.keywords, half.args[1]) == ({"enabled": True}, torch.float16)
    # The processor says what it has.
    for names, native in (({"avx512_bf16": True}, True), ({"avx512_f": True}, False), ({}, False)):
        native_bfloat16.cache_clear()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda names=names: names, raising=False)
        assert native_bfloat16() is native
    native_bfloat16.cache_clear()


def test_steps_that_half_precision_loses_are_told() -> None:
    notice = rounding_notice("bfloat16", 5e-7)
    assert notice is not None
    assert "for weights above 0.00026" in notice
    assert rounding_notice("float16", 5e-7) is not None
    assert rounding_notice("float32", 5e-7) is None
    assert rounding_notice("bfloat16", 1e-4) is None
