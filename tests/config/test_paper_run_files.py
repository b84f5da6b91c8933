"""The papers' run files: their numbers against the papers', planned and priced without the weights."""
# pandas has no type stubs.
# pyright: basic

import dataclasses
import io
from pathlib import Path
from typing import Any

import pandas
import pytest
from rich.console import Console

from cotune.cli.plan import plan
from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import Layout
from cotune.errors import ConfigError
from tests.shapes import CONFIGS, use_cache

FOLDER = Path(__file__).parents[2] / "configs"


PAPERS = (
    "inspo-qwen2.5-3b-trl",
    "inspo-qwen2.5-7b-verl",
    "p2o-deepmath-qwen3-4b-verl",
    "p2o-deepscaler-qwen3-4b-verl",
)
MATH = [name for name in PAPERS if name.startswith("p2o")]


def read(name: str, *assignments: str) -> RunConfig:
    return load_config(FOLDER / f"{name}.yaml", assignments=assignments)


def test_these_are_all() -> None:
    found = {f.stem for f in FOLDER.glob("*.yaml") if f.stem.endswith(("-verl", "-trl"))}
    assert found == {*PAPERS}


@pytest.mark.parametrize("name", [n for n in PAPERS if n.startswith("inspo")])
def test_what_inspos_numbers_come_to(name: str) -> None:
    config: Any = read(name)
    assert config.method.cost(config.strategy, config.shape(1000)).phases == 9
    assert config.training.steps * 512 * 5 == 768_000
    limits = config.limits
    observed = (limits.turns - 1) * limits.observation_tokens
    assert limits.trajectory_tokens >= limits.turns * limits.turn_tokens + observed


@pytest.fixture
def math_files(tmp_path: Path) -> tuple[str, ...]:
    """--set that has a small file in DeepMath's schema in place of the hub."""
    rows = [
        {"question": f"{i} + {i}?", "final_answer": str(2 * i), "difficulty": 7.0}
        for i in range(7000)
    ]
    pandas.DataFrame(rows).to_parquet(tmp_path / "train.parquet")
    return (f"dataset.path={tmp_path / 'train.parquet'}",)


@pytest.mark.parametrize("name", MATH)
def test_p2o_is_priced_without_weights(name: str, math_files: tuple[str, ...]) -> None:
    config = read(name, *math_files)
    planned = plan_run(config)
    assert planned.rollouts["train"] == 390 * 128 * 6
    assert planned.rollouts["evolve"] == 9 * 11_040  # nine epochs end before a step
    assert planned.rollouts["evaluate"] == 3 * 500 + 13 * 500
    assert planned.price is not None
    assert (planned.price > 0) == (name == "p2o-deepscaler-qwen3-4b-verl")


@pytest.mark.parametrize("name", MATH)
def test_the_command_shows_money_and_memory(
    name: str, math_files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(monkeypatch, tmp_path, *CONFIGS)
    out = io.StringIO()
    plan(FOLDER / f"{name}.yaml", Console(file=out, width=200), math_files)
    text = out.getvalue()
    assert "3,680,501,760" in text  # tokens of training, at most
    assert "Memory of a GPU, estimated, at most" in text
    assert "weights, gradients and moments are spread over 8" in text
    assert "vLLM takes 60% of each GPU" in text
    assert ("stopped at the budget of 100.00" in text) == (name == "p2o-deepscaler-qwen3-4b-verl")


@pytest.mark.parametrize("given", ["5000", "5000,500", "5000,500,-1", "a,b,c"])
def test_questions_are_three_numbers(given: str) -> None:
    with pytest.raises(ConfigError, match=r"--questions is .*; expected three numbers"):
        plan(FOLDER / "p2o-deepmath-qwen3-4b-verl.yaml", Console(), (), 1, given)


def test_missing_data_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no file data/"):
        plan(FOLDER / "inspo-qwen2.5-3b-trl.yaml", Console())


def layout(name: str, *assignments: str, processes: int = 1) -> Layout:
    config = read(name, *assignments)
    return engine_of(config).layout(config, processes)


def test_where_runs_train_and_sample() -> None:
    verl = Layout(8, shards=8, share=0.6, dtype="float32", whole_logits=True)
    assert layout("inspo-qwen2.5-7b-verl") == verl
    wide = (
        "training.engine_args={trainer: {nnodes: 2}, actor_rollout_ref.rollout: "
        "{gpu_memory_utilization: 0.5}}"
    )
    assert layout("inspo-qwen2.5-7b-verl", wide) == dataclasses.replace(
        verl, gpus=16, shards=16, share=0.5
    )
    pair = "training.engine_args={actor_rollout_ref.actor.fsdp_config.fsdp_size: 2}"
    assert layout("p2o-deepmath-qwen3-4b-verl", pair).shards == 2
    trl = "inspo-qwen2.5-3b-trl"
    assert layout(trl, processes=8) == Layout(8, shards=8, dtype="float32")
    vllm = "training.engine_args={use_vllm: true}"
    assert layout(trl, vllm, processes=4) == Layout(4, share=0.3)
    served = "training.engine_args={use_vllm: true, vllm_mode: server}"
    assert layout(trl, served).share == 0


def test_verls_keys_may_be_null() -> None:
    for nodes, gpus in (("null", 8), ("2", 16)):
        changed = f"training.engine_args={{trainer.nnodes: {nodes}}}"
        assert layout("p2o-deepmath-qwen3-4b-verl", changed).gpus == gpus


def test_the_type_that_verl_loads() -> None:
    name = "p2o-deepmath-qwen3-4b-verl"
    assert layout(name, "policy.dtype=auto").dtype == "float32"  # unless told otherwise
    assert layout(name, "policy.dtype=bfloat16").dtype == "bfloat16"
    key = "actor_rollout_ref.actor.fsdp_config.model_dtype"
    assert layout(name, f"training.engine_args={{{key}: bf16}}").dtype == "bfloat16"
