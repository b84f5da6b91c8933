"""The run files that ship: they are run files, and those for GPUs are as large as they say."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan import plan
from cotune.config.cost import plan_run
from cotune.config.run_file import load_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import memory_of, shape_of
from cotune.engines.trl.checks import check_args, steps_per_batch
from cotune.engines.trl.run_file_setup import grpo_config
from tests.config.test_paper_run_files import PAPERS
from tests.shapes import use_cache

REPOSITORY = Path(__file__).parents[2]
CONFIGS = {file.stem: file for file in (REPOSITORY / "configs").glob("*.yaml")}
GPUS = {
    "inspo-qwen3-0.6b-1gpu-24gb": (1, 24e9),
    "inspo-qwen2.5-3b-1gpu-80gb": (1, 80e9),
    "inspo-qwen2.5-3b-8gpu": (8, 80e9),
    "inspo-qwen2.5-3b-8gpu-zero2": (8, 80e9),
    "inspo-qwen2.5-7b-8gpu-fsdp": (8, 80e9),
}
"""Those for GPUs, which name data of one's own: how many GPUs, and the bytes of each."""
FILES = sorted(file for name, file in CONFIGS.items() if name not in {*GPUS, *PAPERS})
FILES += sorted((REPOSITORY / "lab" / "configs").glob("geo-*.yaml"))
SPREAD = ("deepspeed", "fsdp", "fsdp_config")
LIBRARIES = 3 * 2**30  # bytes of CUDA, NCCL and fragmentation, at most


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
def test_those_for_gpus_are_planned_and_fit(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = CONFIGS[name], io.StringIO()
    config, (processes, card) = load_config(file), GPUS[name]
    training, strategy = config.training, config.strategy
    assert (config.name, config.output) == (name, Path("runs") / name)
    planned = plan_run(config)
    rows = training.questions_per_step * training.group_size
    assert planned.rollouts["train"] == training.steps * rows
    assert planned.rollouts["verify"] > 0
    assert planned.price is not None
    assert config.method.cost(strategy, config.shape(1000)).phases == 9
    # So that a killed evolution is gone on with unpaid.
    every: Any = strategy
    assert every.evolve_every % training.save_every == 0

    use_cache(monkeypatch, data, config.policy.path)
    plan(file, Console(file=out, width=120), (), processes)
    assert "Memory of a GPU" in out.getvalue()
    assert "notice" not in out.getvalue()
    options = " --processes 8\n" if processes > 1 else "\n"
    assert f"cotune plan configs/{name}.yaml{options}" in file.read_text()
    layout = engine_of(config).layout(config, processes)
    memory = memory_of(config, shape_of(config.policy), layout)
    assert max(memory.sampling or 0, memory.training) + LIBRARIES < card

    monkeypatch.setenv("WORLD_SIZE", "1")
    # One process has nobody to share with, and is told so.
    engine_args = {k: v for k, v in training.engine_args.items() if k not in SPREAD}
    here = training.model_copy(update={"engine_args": engine_args})
    alone = grpo_config(config.model_copy(update={"training": here}), data)
    check_args(alone)
    assert steps_per_batch(alone) == training.mini_batches == 2
    assert rows % (training.mini_batches * training.micro_batch_size * processes) == 0
