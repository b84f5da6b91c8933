"""What imports and commands load, shown by clean interpreters."""

import json
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import cotune
from cotune import methods
from tests.forked import run_module
from tests.run_files import tiny, write

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "trl", "datasets", "pydantic", "openai"}
UTILS = {
    "cotune.utils", "cotune.utils.importing", "cotune.utils.values",
    "cotune.utils.text",
}  # fmt: skip
"""What the methods take from below the protocols: the registry reads entry points."""
RUN = """
import sys
from cotune.cli.app import main
sys.argv = {!r}
try: main()
except SystemExit as stopped: assert not stopped.code, stopped.code
"""


def command(*arguments: object) -> str:
    """A statement that runs the command line in its own process."""
    return RUN.format(["cotune", *map(str, arguments)])


def engine_free() -> list[str]:
    inside = [module.name for module in pkgutil.walk_packages(methods.__path__, "cotune.methods.")]
    return ["cotune.types", "cotune.protocols", "cotune.rollout.episode", *inside]


STATEMENTS = {
    "nothing": "pass",
    "cotune": "import cotune",
    "methods": f"import {', '.join(engine_free())}",
    "configured": "import cotune; cotune.INSPO, cotune.Static",
    "--help": command("--help"),
    "train --help": command("train", "--help"),
}


def parsed(result: "subprocess.CompletedProcess[str]") -> list[set[str]]:
    assert result.returncode == 0, result.stderr
    return [set(names) for names in json.loads(result.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """What a clean interpreter has loaded after each of STATEMENTS, run in this order."""
    words = [sys.executable, "-m", "tests.loaded", *STATEMENTS.values()]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    return dict(zip(STATEMENTS, parsed(result), strict=True))


def top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("statement", ["cotune", "configured"])
def test_import_cotune_and_configuring_a_method_is_light(
    loaded: dict[str, set[str]], statement: str
) -> None:
    assert not top_level(loaded[statement]) & HEAVY


@pytest.mark.parametrize("statement", list(STATEMENTS)[4:])
def test_commands_that_train_nothing_load_no_engine(
    loaded: dict[str, set[str]], statement: str
) -> None:
    assert "cotune.cli.app" in loaded[statement]
    # typer itself loads pydantic.
    assert not top_level(loaded[statement]) & (HEAVY - {"pydantic"})


def test_a_run_file_loads_what_it_names() -> None:
    fields = "output=out", "strategy.kind=inspo", "environment=my.py:World", "llm=my.py:LLM"
    statement = f"from cotune.config import run_file as r; r.parse_config(r.with_overrides({{}}, {fields}), '')"
    words = [sys.executable, "-m", "tests.loaded", statement]
    (modules,) = parsed(subprocess.run(words, capture_output=True, text=True, cwd=ROOT))
    assert "cotune.methods.inspo.inspo" in modules
    unused = {"methods.p2o.p2o", "methods.fst", "environments.search", "worlds.ladder"}
    assert not {f"cotune.{name}" for name in unused} & modules


def test_a_plan_loads_no_client_of_an_endpoint(tmp_path: Path) -> None:
    """It shows a prompt in tokens, and checks the trainer's arguments: the rest is needed."""
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    before, after = parsed(run_module("tests.loaded", "pass", command("plan", file)))
    assert "openai" not in before
    assert "cotune.cli.plan" in after
    assert top_level(after) & HEAVY <= {"torch", "transformers", "trl", "datasets", "pydantic"}


def test_engine_free_modules_import_only_each_other_and_numpy(loaded: dict[str, set[str]]) -> None:
    names = engine_free()
    assert {"cotune.methods.p2o.p2o", "cotune.methods.text_evolution"} <= set(names)
    assert len(names) >= 20
    modules = loaded["methods"]
    local = {name for name in modules if name.startswith("cotune")}
    assert local == {"cotune", "cotune.errors", "cotune.methods", "cotune.rollout", *UTILS, *names}
    # gepa is loaded by the phase that needs it.
    foreign = top_level(modules - loaded["nothing"] - local) - set(sys.stdlib_module_names)
    assert foreign <= {"numpy"}


def test_public_names() -> None:
    assert sorted(cotune.__all__, key=str.lower) == sorted(set(cotune.__all__), key=str.lower)
    for name in cotune.__all__:
        value = getattr(cotune, name)
        assert getattr(value, "__name__", name) == {"from_trl": "TrlEnvironment"}.get(name, name)
        assert value.__doc__
    assert {name for name in dir(cotune) if not name.startswith("_")} == set(cotune.__all__)
    assert cotune.__version__ == version("cotune")
    with pytest.raises(AttributeError, match="no attribute 'INSPOO'"):
        _ = cotune.INSPOO  # pyright: ignore[reportAttributeAccessIssue]
