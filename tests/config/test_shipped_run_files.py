"""The run files that ship: they are run files, and those for GPUs are planned and pass the trainer's checks."""

import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from rich.console import Console

from cotune.cli.plan import plan
from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.trl.checks import check_args, steps_per_batch
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError

REPOSITORY = Path(__file__).parents[2]
CONFIGS = {file.stem: file for file in (REPOSITORY / "configs").glob("*.yaml")}
GPUS = {
    "inspo-qwen3-0.6b-1gpu-24gb": 1,
    "inspo-qwen2.5-3b-1gpu-80gb": 1,
    "inspo-qwen2.5-3b-8gpu": 8,
    "inspo-qwen2.5-3b-8gpu-zero2": 8,
    "inspo-qwen2.5-7b-8gpu-fsdp": 8,
}
"""Those for GPUs, which name data of one's own, and how many GPUs."""
PAPERS = (
    "inspo-qwen2.5-3b-trl",
    "inspo-qwen2.5-7b-verl",
    "p2o-deepmath-qwen3-4b-verl",
    "p2o-deepscaler-qwen3-4b-verl",
)
"""The papers', whose numbers are compared with the papers', and priced without the weights."""
MATH = [name for name in PAPERS if name.startswith("p2o")]
FILES = sorted(file for name, file in CONFIGS.items() if name not in {*GPUS, *PAPERS})
FILES += sorted((REPOSITORY / "lab" / "configs").glob("geo-*.yaml"))
SPREAD = ("deepspeed", "fsdp", "fsdp_config")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_run_file_parses_and_is_planned(file: Path) -> None:
    config = load_config(file)
    assert config.name == file.stem
    assert config.output == Path("runs") / file.stem
    planned = plan_run(config)
    assert (planned.rollouts["train"] > 0) == config.has_batches
    by_gepa = file.stem in {"geo-p2o", "geo-gepa", "geo-fst"}
    assert bool(planned.rollouts.get("evolve")) == by_gepa


@pytest.fixture
def data(cwd: Path) -> Path:
    """The files that the run files name, in the working directory."""
    (cwd / "data").mkdir()
    passage = {"id": "1", "contents": '"Lima"\nLima is the capital of Peru.'}
    (cwd / "data" / "corpus.jsonl").write_text(json.dumps(passage))
    for name, count in (("train", 700), ("validation", 20), ("test", 30)):
        rows = [json.dumps({"question": f"q{i}?", "answers": ["Lima"]}) for i in range(count)]
        (cwd / "data" / f"{name}.jsonl").write_text("\n".join(rows))
    return cwd


@pytest.mark.parametrize("name", GPUS)
def test_those_for_gpus_are_planned_and_pass_the_trainers_checks(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CONFIGS[name]
    out = io.StringIO()
    config, processes = load_config(file), GPUS[name]
    training = config.training
    strategy = config.strategy
    assert (config.name, config.output) == (name, Path("runs") / name)
    planned = plan_run(config)
    rows = training.questions_per_step * training.group_size
    assert planned.rollouts["train"] == training.steps * rows
    assert planned.rollouts["verify"] > 0
    assert planned.price is not None
    assert config.method.cost(strategy, config.shape(1000)).phases == 9
    # So that a killed evolution is gone on with unpaid.
    inspo: Any = strategy
    assert inspo.evolve_every % training.save_every == 0

    plan(file, Console(file=out, width=120))
    assert f"{planned.rollouts['verify']:,}" in out.getvalue()

    monkeypatch.setenv("WORLD_SIZE", "1")
    # One process has nobody to share with, and is told so.
    engine_args = {k: v for k, v in training.engine_args.items() if k not in SPREAD}
    local_training = training.model_copy(update={"engine_args": engine_args})
    args = grpo_config(config.model_copy(update={"training": local_training}), data)
    check_args(args)
    assert steps_per_batch(args) == training.mini_batches == 2
    assert rows % (training.mini_batches * training.micro_batch_size * processes) == 0


# ---- the papers'


def read(name: str, *assignments: str) -> RunConfig:
    return load_config(CONFIGS[name], assignments=assignments)


@pytest.mark.parametrize("name", [n for n in PAPERS if n.startswith("inspo")])
def test_what_inspos_numbers_come_to(name: str) -> None:
    config: Any = read(name)
    assert config.method.cost(config.strategy, config.shape(1000)).phases == 9
    assert config.training.steps * 512 * 5 == 768_000
    limits = config.limits
    observation_tokens = (limits.turns - 1) * limits.observation_tokens
    assert limits.trajectory_tokens >= limits.turns * limits.turn_tokens + observation_tokens


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
    has_price = name == "p2o-deepscaler-qwen3-4b-verl"
    assert (planned.price > 0) == has_price

    out = io.StringIO()
    plan(CONFIGS[name], Console(file=out, width=200), math_files)
    text = out.getvalue()
    assert "3,680,501,760" in text  # tokens of training, at most
    assert ("stopped at the budget of 100.00" in text) == has_price


@pytest.mark.parametrize("questions", ["5000", "5000,500", "5000,500,-1", "a,b,c"])
def test_questions_are_three_numbers(questions: str) -> None:
    with pytest.raises(ConfigError, match=r"--questions is .*; expected three numbers"):
        plan(CONFIGS[MATH[0]], Console(), (), questions)
