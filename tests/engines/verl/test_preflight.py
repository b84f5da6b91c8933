"""What the preflight says of engine_args, against veRL's own files."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.verl.settings import verl_config
from cotune.errors import ConfigError
from tests.engines.verl.runs import GEO, run_file


def checked(folder: Path, args: dict[str, Any]) -> Preflight:
    training = GEO["training"] | {"engine": "verl", "mini_batches": 1, "engine_args": args}
    raw = GEO | {"output": str(folder / "run"), "training": training}
    return Preflight(parse_config(raw, "the test"))


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ({"model_engine": "no-such"}, "training.engine_args: "),
        ({"actor_rollout_ref.rollout.n": 4}, "set by training.group_size"),
        ({"actor_rollout_ref.rollout.name": "sglang"}, "expected vllm"),
        ({"trainer.n_gpus_per_node": 3}, "which 3 ranks cannot share evenly"),
    ],
)
def test_the_preflight_says_what_training_says(
    args: dict[str, Any], part: str, tmp_path: Path
) -> None:
    before = checked(tmp_path, args)
    with pytest.raises(ConfigError) as early:
        before.require(machine_checks=("training",))  # as plan does
    with pytest.raises(ConfigError) as late:
        verl_config(before.config, tmp_path, 1, False)
    assert part in str(early.value)
    assert str(early.value) == str(late.value)
    assert any(part in str(found) for _, found in before.outcomes())  # as doctor does


def test_verl_is_not_imported_for_it(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cotune.config.run_file import load_config\n"
        "from cotune.engines.preflight import Preflight\n"
        "from cotune.engines.verl.verl_engine import ENGINE\n"
        "(check,) = ENGINE.check(Preflight(load_config(Path(sys.argv[1]))))\n"
        "assert check.look() is None\n"
        "assert not {'verl', 'ray', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    path = run_file(tmp_path)
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
