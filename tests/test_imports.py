"""What an import loads, proved in clean interpreters."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import cotune
from cotune import methods
from tests.run_files import tiny, write

HEAVY = {"torch", "transformers", "trl", "datasets", "pydantic", "openai"}


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement adds to a clean interpreter's."""
    code = (
        "import json, sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "print('\\n' + json.dumps(sorted(set(sys.modules) - before)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_cotune_is_light() -> None:
    assert not top_level(loaded_by("import cotune")) & HEAVY


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["--help"], set[str]()),
        (["train", "--help"], set[str]()),
        (["baseline", "--help"], set[str]()),
        (["schema"], set[str]()),
        # It shows a prompt in tokens, and checks the trainer's arguments.
        (["plan", "RUN"], {"torch", "transformers", "trl", "datasets"}),
    ],
)
def test_commands_that_train_nothing_load_no_engine(
    arguments: list[str], needed: set[str], tmp_path: Path
) -> None:
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    argv = ["cotune", *(str(file) if part == "RUN" else part for part in arguments)]
    modules = loaded_by(
        f"import sys; sys.argv = {argv!r}\n"
        "from cotune.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stopped: assert not stopped.code, stopped.code"
    )
    assert "cotune.cli.app" in modules
    # typer itself loads pydantic.
    assert not top_level(modules) & (HEAVY - {"pydantic"} - needed)


def test_the_names_of_the_baselines_load_no_engine() -> None:
    modules = loaded_by("from cotune.experiments.baselines import BASELINES; assert BASELINES")
    assert not top_level(modules) & (HEAVY - {"pydantic"})


def test_configuring_a_method_loads_no_engine() -> None:
    modules = loaded_by("import cotune; cotune.INSPO, cotune.Static, cotune.GeoOptions(train=3)")
    assert not top_level(modules) & HEAVY


UTILS = {"cotune.utils", "cotune.utils.importing"}
"""What the methods take from below the protocols: the registry reads entry points."""


def engine_free() -> list[str]:
    inside = [module.name for module in pkgutil.walk_packages(methods.__path__, "cotune.methods.")]
    return ["cotune.types", "cotune.protocols", "cotune.rollout.episode", *inside]


def test_engine_free_modules_import_only_each_other_and_numpy() -> None:
    names = engine_free()
    assert {"cotune.methods.p2o.p2o", "cotune.methods.composed"} <= set(names)
    assert "cotune.methods.text_evolution" in names
    assert len(names) >= 20
    modules = loaded_by("import " + ", ".join(names))
    own = {name for name in modules if name.startswith("cotune")}
    assert own == {"cotune", "cotune.errors", "cotune.methods", "cotune.rollout", *UTILS, *names}
    # gepa is loaded by the phase that needs it.
    foreign = top_level(modules - own) - set(sys.stdlib_module_names)
    assert foreign <= {"numpy"}


def test_public_names() -> None:
    assert sorted(cotune.__all__, key=str.lower) == sorted(set(cotune.__all__), key=str.lower)
    for name in cotune.__all__:
        found = getattr(cotune, name)
        assert getattr(found, "__name__", name) == name
        assert found.__doc__
    assert set(cotune.__all__) <= set(dir(cotune))
    with pytest.raises(AttributeError, match="no attribute 'INSPOO'"):
        _ = cotune.INSPOO  # pyright: ignore[reportAttributeAccessIssue]
