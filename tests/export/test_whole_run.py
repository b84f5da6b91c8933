"""A run ends with a folder that serves, and what loads it does so without the instruction in it."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from cotune.cli.train import train
from cotune.config.run_file import load_config, parse_config
from cotune.experiments.evaluate.evaluation import evaluate_run
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.policy.local_policy import load_codec
from cotune.run.run_dir import RunDir
from tests.export.finished import read_json
from tests.export.test_complete import check_renders_as_evaluated, tokenizer_of
from tests.policy.tiny import small_policy
from tests.run_files import environment_of, tiny, write


@pytest.mark.slow
def test_a_run_ends_with_a_folder_that_serves(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.yaml", tiny(tmp_path / "run", {"policy": {"path": small_policy()}})
    )
    train(file, Console(quiet=True), quiet=True)
    run, config = RunDir.open(tmp_path / "run"), load_config(file)
    best = run.best_path
    assert {
        "README.md", "best.json", "chat_template.jinja", "config.json", "generation_config.json",
        "instruction.txt", "model.safetensors", "serving.json", "tokenizer.json",
        "tokenizer_config.json",
    } == {path.name for path in best.iterdir()}  # fmt: skip
    environment = environment_of(config)
    check_renders_as_evaluated(run, config, environment, tokenizer_of("bundled:geo"))
    summary = run.read_summary()
    assert summary is not None
    (arm,) = summary["arms"].values()
    assert f"| all 6 | {arm['em']:.3f} |" in (best / "README.md").read_text(encoding="utf-8")

    # Of rollouts under the best instruction: it would stand there twice.
    (result,) = evaluate_run(config, run, EvaluationOptions()).sets
    greedy = result.figures[0]
    assert (greedy.statistic, greedy.mean) == ("greedy", arm["em"])
    kept = read_json(best / "best.json")["instruction"]
    rows = run.read_trajectories(4, "evaluate_after")
    text: Any = AutoTokenizer.from_pretrained(best).decode(rows[0]["prompt_ids"])
    assert text.count(kept) == 1

    next_run = tiny(tmp_path / "next", {"policy": {"path": str(best)}})
    tokenizer = load_codec(parse_config(next_run, "the test").policy).tokenizer
    assert tokenizer.chat_template == tokenizer_of("bundled:geo").chat_template
