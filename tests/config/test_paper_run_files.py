"""The papers' run files: their numbers against the papers', planned and priced without the weights."""
# pandas has no type stubs.
# pyright: basic

import io
from dataclasses import replace
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
def test_p2o_is_priced_without_weights(
    name: str, math_files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(name, *math_files)
    planned = plan_run(config)
    assert planned.rollouts["train"] == 390 * 128 * 6
    assert planned.rollouts["evolve"] == 9 * 11_040  # nine epochs end before a step
    assert planned.rollouts["evaluate"] == 3 * 500 + 13 * 500
    assert planned.price is not None
    priced = name == "p2o-deepscaler-qwen3-4b-verl"
    assert (planned.price > 0) == priced

    use_cache(monkeypatch, tmp_path, *CONFIGS)
    out = io.StringIO()
    plan(FOLDER / f"{name}.yaml", Console(file=out, width=200), math_files)
    text = out.getvalue()
    assert "3,680,501,760" in text  # tokens of training, at most
    assert "Memory of a GPU, estimated, at most" in text
    assert "weights, gradients and moments are spread over 8" in text
    assert "vLLM takes 60% of each GPU" in text
    assert ("stopped at the budget of 100.00" in text) == priced


@pytest.mark.parametrize("given", ["5000", "5000,500", "5000,500,-1", "a,b,c"])
def test_questions_are_three_numbers(given: str) -> None:
    with pytest.raises(ConfigError, match=r"--questions is .*; expected three numbers"):
        plan(FOLDER / "p2o-deepmath-qwen3-4b-verl.yaml", Console(), (), 1, given)


VERL = Layout(8, shards=8, share=0.6, dtype="float32", whole_logits=True)
BARE = replace(VERL, share=0.5)  # without the file's engine_args
INSPO_TRL, INSPO_VERL, P2O = "inspo-qwen2.5-3b-trl", "inspo-qwen2.5-7b-verl", MATH[0]
ARGS = "training.engine_args"


@pytest.mark.parametrize(
    ("name", "assignment", "processes", "expected"),
    [
        (INSPO_VERL, None, 1, VERL),
        (
            INSPO_VERL,
            f"{ARGS}={{trainer: {{nnodes: 2}}, actor_rollout_ref.rollout: {{gpu_memory_utilization: 0.5}}}}",
            1,
            replace(BARE, gpus=16, shards=16),
        ),
        (P2O, f"{ARGS}={{actor_rollout_ref.actor.fsdp_config.fsdp_size: 2}}", 1, replace(BARE, shards=2)),
        (P2O, f"{ARGS}={{trainer.nnodes: null}}", 1, BARE),
        (P2O, f"{ARGS}={{trainer.nnodes: 2}}", 1, replace(BARE, gpus=16, shards=16)),
        (P2O, "policy.dtype=auto", 1, VERL),  # float32 unless told otherwise
        (P2O, "policy.dtype=bfloat16", 1, replace(VERL, dtype="bfloat16")),
        (P2O, f"{ARGS}={{actor_rollout_ref.actor.fsdp_config.model_dtype: bf16}}", 1, replace(BARE, dtype="bfloat16")),
        (INSPO_TRL, None, 8, Layout(8, shards=8, dtype="float32")),
        (INSPO_TRL, f"{ARGS}={{use_vllm: true}}", 4, Layout(4, share=0.3)),
        (INSPO_TRL, f"{ARGS}={{use_vllm: true, vllm_mode: server}}", 1, Layout(1, share=0)),
    ],
)  # fmt: skip
def test_where_runs_train_and_sample(
    name: str, assignment: str | None, processes: int, expected: Layout
) -> None:
    config = read(name, *([assignment] if assignment else []))
    assert engine_of(config).layout(config, processes) == expected
