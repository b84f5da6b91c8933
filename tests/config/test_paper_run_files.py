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
from cotune.config.run_file import RunConfig, dump_config, load_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import Layout
from cotune.errors import ConfigError
from cotune.utils.text import flat
from tests.shapes import CONFIGS, use_cache

FOLDER = Path(__file__).parents[2] / "configs"

# The papers: INSPO's Section 4 and Appendix B and C; P²O's settings.
INSPO: dict[str, Any] = {
    "environment.kind": "search",
    "environment.protocol": "search-r1",
    "environment.top_k": 3,
    "limits.turn_tokens": 500,
    "limits.observation_tokens": 500,
    "limits.prompt_tokens": 4096,
    "strategy.kind": "inspo",
    "strategy.population_size": 7,
    "strategy.parents": 1,
    "strategy.selection_temperature": 0.2,
    "strategy.window": 5,
    "strategy.prune_every": 5,
    "strategy.evolve_every": 15,
    "strategy.evolve_until": 150,
    "strategy.verification_tasks": 200,
    "strategy.verification_rounds": 5,
    "strategy.failures_per_reflection": 4,
    "strategy.candidates": 6,
    "strategy.proposer": "reflection",
    "llm.model": "gemini-2.5-pro",
    "training.steps": 300,
    "training.questions_per_step": 512,
    "training.group_size": 5,
    "training.mini_batches": 2,  # 512 / 256
    "training.schedule": "cosine",
    "training.warmup": 0.1,
    "training.kl": 0.001,
    "training.clip": 0.2,
    "training.temperature": 1.0,
    "evaluation.every": 100,
}
P2O: dict[str, Any] = {
    "policy.path": "Qwen/Qwen3-4B",
    "environment.kind": "math",
    "dataset.limit": 5000,
    "limits.turns": 1,
    "limits.turn_tokens": 12288,
    "limits.prompt_tokens": 4096,
    "strategy.kind": "p2o",
    "strategy.successes_below": 2,
    "strategy.hinted_per_group": "all",
    "policy.template_args.enable_thinking": False,
    "strategy.distillation.ratio": "original",
    "strategy.hints.hard_set_min_count": 100,
    "strategy.hints.dev_size": 300,
    "strategy.hints.beam": 16,
    "llm.temperature": 0.6,
    "llm.max_tokens": 2048,
    "training.engine": "verl",
    "training.questions_per_step": 128,
    "training.group_size": 6,
    "training.mini_batches": 2,  # 128 / 64
    "training.learning_rate": 1e-6,
    "training.warmup": 0.05,
    "training.kl": 0,
    "training.clip": 0.2,
    "training.temperature": 0.6,
    "training.engine_args.trainer.n_gpus_per_node": 8,
}
PAPERS: dict[str, dict[str, Any]] = {
    "inspo-qwen2.5-3b-trl": INSPO | {"policy.path": "Qwen/Qwen2.5-3B", "training.engine": "trl", "limits.turns": 4} | {"training.learning_rate": 5e-7},
    "inspo-qwen2.5-7b-verl": INSPO
    | {"policy.path": "Qwen/Qwen2.5-7B", "training.engine": "verl", "limits.turns": 6}
    | {"training.learning_rate": 3e-7, "training.engine_args.trainer.n_gpus_per_node": 8},
    "p2o-deepmath-qwen3-4b-verl": P2O | {"llm.extra_body.chat_template_kwargs.enable_thinking": False},
    "p2o-deepscaler-qwen3-4b-verl": P2O,
}  # fmt: skip
MATH = [name for name in PAPERS if name.startswith("p2o")]


def read(name: str, *assignments: str) -> RunConfig:
    return load_config(FOLDER / f"{name}.yaml", assignments=assignments)


def test_these_are_all() -> None:
    found = {f.stem for f in FOLDER.glob("*.yaml") if f.stem.endswith(("-verl", "-trl"))}
    assert found == PAPERS.keys()


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_numbers(name: str) -> None:
    config = read(name)
    assert (config.name, config.output) == (name, Path("runs") / name)
    given = flat(dump_config(config))
    wrong = {k: given.get(k) for k, v in PAPERS[name].items() if given.get(k) != v}
    assert wrong == {}


def test_what_the_numbers_come_to() -> None:
    p2o: Any = read("p2o-deepmath-qwen3-4b-verl")
    # "heavy_4" of DSPy; 30,000 rollouts an epoch; ten epochs, rounded down to whole batches.
    assert p2o.strategy.hints.evaluations(300) == 11_040
    assert 5000 * p2o.training.group_size == 30_000
    assert p2o.training.steps == 10 * 5000 // 128


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


def test_missing_data_names_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no file data/.*--questions TRAIN,VALIDATION,TEST"):
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
    assert layout(trl, vllm, processes=4) == Layout(4, share=0.3, kept=0.3)
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
