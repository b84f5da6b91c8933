"""The run files that ship are run files."""

from pathlib import Path

import pytest

from cotune.config.cost import plan_run
from cotune.config.run_file import load_config

# Those for GPUs, which name data of your own, are in test_gpu_configs.py and test_paper_configs.py.
REPOSITORY = Path(__file__).parents[2]
CONFIGS = (REPOSITORY / "configs").glob("*.yaml")
FILES = sorted(file for file in CONFIGS if not file.stem.startswith(("inspo-", "p2o-")))
FILES += sorted((REPOSITORY / "lab" / "configs").glob("geo-*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_run_file_parses_and_is_planned(file: Path) -> None:
    config = load_config(file)
    assert config.name == file.stem
    assert config.output == Path("runs") / file.stem
    planned = plan_run(config)
    trained = config.has_batches
    assert (planned.rollouts["train"] > 0) == trained


def test_hints_or_an_instruction_evolve_by_gepa_where_it_is_asked_for() -> None:
    planned = {file.stem: plan_run(load_config(file)).rollouts for file in FILES}
    assert {name for name, rollouts in planned.items() if rollouts.get("evolve")} == {
        "geo-p2o",
        "geo-gepa",
        "geo-fst",
    }
