"""The run files for one GPU to eight: parsed, planned, and as large as they say."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cotune.cli.plan.plan import plan
from cotune.config.cost import plan_run
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.memory import Memory, read_shape
from cotune.engines.trl.checks import check_args, steps_per_batch
from cotune.engines.trl.memory_sharding import memory_over
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError
from tests.cli.plan.test_memory import QWEN2_3B, QWEN3_06B, cached

FOLDER = Path(__file__).parents[2] / "configs"
QWEN2_7B: dict[str, Any] = {
    **QWEN2_3B,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
FILES = {
    "inspo-qwen3-0.6b-1gpu-24gb": ("Qwen/Qwen3-0.6B", QWEN3_06B, 1, 24),
    "inspo-qwen2.5-3b-1gpu-80gb": ("Qwen/Qwen2.5-3B-Instruct", QWEN2_3B, 1, 80),
    "inspo-qwen2.5-3b-8gpu": ("Qwen/Qwen2.5-3B-Instruct", QWEN2_3B, 8, 80),
    "inspo-qwen2.5-3b-8gpu-zero2": ("Qwen/Qwen2.5-3B-Instruct", QWEN2_3B, 8, 80),
    "inspo-qwen2.5-7b-8gpu-fsdp": ("Qwen/Qwen2.5-7B-Instruct", QWEN2_7B, 8, 80),
}
SPREAD = ("deepspeed", "fsdp", "fsdp_config")
GIB = 2**30


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


def read(name: str) -> tuple[RunConfig, Memory]:
    config = load_config(FOLDER / f"{name}.yaml")
    _, shape, processes, _ = FILES[name]
    return config, memory_over(config, read_shape(shape), processes)


def test_these_are_all() -> None:
    # The papers' own settings are in test_paper_configs.py.
    found = {file.stem for file in FOLDER.glob("inspo-*.yaml")}
    assert {name for name in found if not name.endswith(("-trl", "-verl"))} == FILES.keys()


@pytest.mark.parametrize("name", FILES)
def test_they_are_planned(name: str, data: Path) -> None:
    config, _ = read(name)
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


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, _ = read("inspo-qwen2.5-3b-8gpu")
    with pytest.raises(ConfigError, match=r"data/train\.jsonl"):
        plan_run(config)


@pytest.mark.parametrize("name", FILES)
def test_the_command_shows_their_memory(
    name: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(data))
    cached(data, FILES[name][0], FILES[name][1])
    out = io.StringIO()
    plan(FOLDER / f"{name}.yaml", Console(file=out, width=120), (), FILES[name][2], None, "h100")
    text = out.getvalue()
    assert "Memory of a GPU" in text
    assert "notice" not in text
    _, memory = read(name)
    assert f"{memory.training / GIB:.1f} GiB" in text


@pytest.mark.parametrize("name", FILES)
def test_the_processes_share_a_batch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, _ = read(name)
    monkeypatch.setenv("WORLD_SIZE", "1")
    training, processes = config.training, FILES[name][2]
    # One process has nobody to share with, and is told so.
    engine_args = {k: v for k, v in training.engine_args.items() if k not in SPREAD}
    here = training.model_copy(update={"engine_args": engine_args})
    alone = grpo_config(config.model_copy(update={"training": here}), tmp_path)
    check_args(alone)
    assert steps_per_batch(alone) == training.mini_batches == 2
    rows = training.questions_per_step * training.group_size
    assert rows % (training.mini_batches * training.micro_batch_size * processes) == 0


@pytest.mark.parametrize("name", FILES)
def test_the_comments_say_what_the_estimate_says(name: str) -> None:
    config, memory = read(name)
    text = (FOLDER / f"{name}.yaml").read_text()
    found = re.search(r"at most: sampling ([\d.]+) GiB, training ([\d.]+) GiB", text)
    assert found is not None
    processes, card = FILES[name][2:]
    buckets = memory.buckets if processes > 1 else 0
    assert memory.sampling is not None
    needed = [memory.sampling + buckets, memory.training + buckets]
    assert [float(part) for part in found.groups()] == [round(n / GIB, 1) for n in needed]
    # CUDA, NCCL and fragmentation take their part of a card; 80 GB ones hold 79 GiB.
    assert max(needed) / GIB + 2.5 < {24: 23.5, 80: 79}[card]
    said = {float(value) for value in re.findall(r"([\d.]+) GiB", text)}
    assert memory.cache is not None
    for part in (memory.cache, memory.activations):
        assert round(part / GIB, 1) in said
    longest = config.limits.prompt_tokens + config.limits.trajectory_tokens
    assert f"{config.training.rows_per_call} rows × {longest:,} tokens" in text
    assert "projected" in text
    assert "measured" not in text


@pytest.mark.parametrize("name", FILES)
def test_the_comments_arithmetic_of_time(name: str) -> None:
    """rollouts / rows × turns × tokens × seconds, in minutes."""
    config, _ = read(name)
    training, limits, processes = config.training, config.limits, FILES[name][2]
    text = (FOLDER / f"{name}.yaml").read_text()
    found = re.search(r"× (\d+) turns × (\d+) tokens × ([\d.]+) s +(\d+) minutes", text)
    assert found is not None
    turns, tokens, seconds, minutes = found.groups()
    assert (int(turns), int(tokens)) == (limits.turns, limits.turn_tokens)
    rollouts = training.questions_per_step * training.group_size / processes
    calls = rollouts / training.rows_per_call
    assert round(calls * limits.turns * limits.turn_tokens * float(seconds) / 60) == int(minutes)
    assert f"{round(rollouts * processes):,} rollouts" in text
