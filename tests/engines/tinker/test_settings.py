"""What a run file may not ask of a Tinker server; the SDK is not needed."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import RunConfig, parse_config
from cotune.engines.tinker.service import HOSTED, TinkerArguments, read_arguments
from cotune.engines.tinker.tinker_engine import ENGINE
from cotune.errors import ConfigError
from tests.engines.tinker.setup import LETTERS, run_file


def config(**changes: Any) -> RunConfig:
    return parse_config(run_file(Path("runs/x"), "bundled:geo", changes), "run.yaml")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": {"lora": None}}, "policy.lora: missing"),
        ({"policy": {"lora": {"alpha": 16}}}, "policy.lora.alpha 16"),
        ({"policy": {"lora": {"dropout": 0.1}}}, "policy.lora.dropout 0.1"),
        ({"policy": {"lora": {"target_modules": ["q_proj"]}}}, "policy.lora.target_modules"),
        ({"policy": {"dtype": "bfloat16"}}, "policy.dtype bfloat16"),
        ({"training": {"precision": "bf16"}}, "training.precision bf16"),
        ({"training": {"temperature": 0.7}}, "training.temperature 0.7"),
        ({"training": {"kl": 0.001}}, "training.kl 0.001"),
        ({"training": {"frozen": True}}, "training.frozen"),
        (
            {"strategy": {"kind": "inspo", "groups": "mixed", "distil_steps": 1}},
            "strategy.distil_steps",
        ),
        ({"logging": {"report_to": ["tensorboard"]}}, "logging.report_to"),
        ({"training": {"engine_args": {"max_grad_norm": 1.0}}}, "engine_args.max_grad_norm"),
        ({"training": {"engine_args": {"api_key": "tml-x"}}}, "engine_args.api_key"),
        ({"training": {"engine_args": {"row_multiple": 0}}}, "engine_args.row_multiple"),
        (
            {"training": {"engine_args": {"price_per_million": {"train": 1}}}},
            "engine_args.price_per_million.prefill: missing",
        ),
    ],
)
def test_what_the_api_has_not_is_refused_by_its_field(changes: Any, field: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_arguments(config(**changes))
    assert field in str(error.value)
    assert "tml-x" not in str(error.value)


@pytest.mark.parametrize(
    ("longest", "line"),
    [
        # Of 58 rollouts 76 tokens are prefilled, 72 + 86 cached, 24 sampled; of 48, 100 are trained on.
        (40, "at most $22.51 for tokens (prefill 4,408, cached 9,164, sample 1,392, train 4,800)"),
        # The second turn fills the trajectory.
        (20, "at most $19.73 for tokens (prefill 4,408, cached 9,048, sample 1,160, train 4,032)"),
    ],
)
def test_a_plan_has_its_price(longest: int, line: str) -> None:
    limits = {**LETTERS["limits"], "trajectory_tokens": longest}
    rollouts = {"train": 48, "evaluate": 10}
    assert ENGINE.price(config(limits=limits), rollouts) == ""
    prices = {"prefill": 1000, "cached": 100, "sample": 2000, "train": 3000}
    priced = config(limits=limits, training={"engine_args": {"price_per_million": prices}})
    assert line in ENGINE.price(priced, rollouts)


def test_engine_args_are_read_and_the_key_is_in_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = {"base_url": "http://box", "base_model": "/models/x", "row_multiple": 8}
    assert read_arguments(config(training={"engine_args": args})) == TinkerArguments(**args)
    # The key is in its variable.
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert TinkerArguments().url == HOSTED
    with pytest.raises(ConfigError, match="variable MY_KEY is not set"):
        _ = TinkerArguments(api_key_env="MY_KEY").key
    monkeypatch.setenv("MY_KEY", "tml-mine")
    assert TinkerArguments(api_key_env="MY_KEY").key == "tml-mine"
    # A server of one's own may need none.
    assert TinkerArguments(base_url="http://box:8000/").url == "http://box:8000"
    assert TinkerArguments(base_url="http://box:8000").key.startswith("tml-")
    monkeypatch.setenv("TINKER_BASE_URL", "http://other")
    assert TinkerArguments().url == "http://other"
