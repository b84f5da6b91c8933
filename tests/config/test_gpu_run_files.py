"""The run files for one GPU to eight: parsed, planned, and as large as they say."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan import plan
from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.engine import engine_of
from cotune.engines.estimate import memory_of, shape_of
from cotune.engines.trl.checks import check_args, steps_per_batch
from cotune.engines.trl.run_file_setup import grpo_config
from tests.shapes import use_cache

FOLDER = Path(__file__).parents[2] / "configs"
FILES = {
    "inspo-qwen3-0.6b-1gpu-24gb": (1, 24e9),
    "inspo-qwen2.5-3b-1gpu-80gb": (1, 80e9),
    "inspo-qwen2.5-3b-8gpu": (8, 80e9),
    "inspo-qwen2.5-3b-8gpu-zero2": (8, 80e9),
    "inspo-qwen2.5-7b-8gpu-fsdp": (8, 80e9),
}
SPREAD = ("deepspeed", "fsdp", "fsdp_config")
LIBRARIES = 3 * 2**30  # bytes of CUDA, NCCL and fragmentation, at most


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the run files name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    passage = {"id": "1", "contents": '"Lima"\nLima is the capital of Peru.'}
    (tmp_path / "data" / "corpus.jsonl").write_text(json.dumps(passage))
    for name, count in (("train", 700), ("validation", 20), ("test", 30)):
        rows = [json.dumps({"question": f"q{i}?", "answers": ["Lima"]}) for i in range(count)]
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(rows))
    return tmp_path


def read(name: str) -> RunConfig:
    return load_config(FOLDER / f"{name}.yaml")


def test_these_are_all() -> None:
    # The papers' own settings are in test_paper_configs.py.
    found = {file.stem for file in FOLDER.glob("inspo-*.yaml")}
    assert {name for name in found if not name.endswith(("-trl", "-verl"))} == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_they_are_planned(name: str, data: Path) -> None:
    config = read(name)
    assert (config.name, config.output) == (name, Path("runs") / name)
    planned = plan_run(config)
    training = config.training
    batch = training.questions_per_step * training.group_size
    assert planned.rollouts["train"] == training.steps * batch
    assert planned.rollouts["verify"] > 0
    assert planned.price is not None
    strategy: Any = config.strategy
    # So that a killed evolution is gone on with unpaid.
    assert strategy.evolve_every % training.save_every == 0
    assert config.method.cost(strategy, config.shape(1000)).phases == 9


@pytest.mark.parametrize("name", FILES)
def test_they_fit(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, (processes, card) = read(name), FILES[name]
    use_cache(monkeypatch, data, config.policy.path)
    file, out = FOLDER / f"{name}.yaml", io.StringIO()
    plan(file, Console(file=out, width=120), (), processes)
    assert "Memory of a GPU" in out.getvalue()
    assert "notice" not in out.getvalue()
    options = " --processes 8\n" if processes > 1 else "\n"
    assert f"cotune plan configs/{name}.yaml{options}" in file.read_text()
    layout = engine_of(config).layout(config, processes)
    memory = memory_of(config, shape_of(config.policy), layout)
    held = max(memory.sampling or 0, memory.training)
    assert held + LIBRARIES < card


@pytest.mark.parametrize("name", FILES)
def test_the_processes_share_a_batch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = read(name)
    monkeypatch.setenv("WORLD_SIZE", "1")
    training, processes = config.training, FILES[name][0]
    # One process has nobody to share with, and is told so.
    engine_args = {k: v for k, v in training.engine_args.items() if k not in SPREAD}
    here = training.model_copy(update={"engine_args": engine_args})
    alone = grpo_config(config.model_copy(update={"training": here}), tmp_path)
    check_args(alone)
    assert steps_per_batch(alone) == training.mini_batches == 2
    rows = training.questions_per_step * training.group_size
    assert rows % (training.mini_batches * training.micro_batch_size * processes) == 0
