"""Code that a run folder names is not imported before the user trusts it."""

from pathlib import Path

import pytest

from cotune.cli.trust import check_server, check_trusted, code_references
from cotune.errors import ConfigError
from cotune.run.record import Record
from tests.command_line import Command
from tests.run_files import tiny

RUN = {"environment": "single_turn", "dataset": {"path": "a.jsonl"}, "strategy": {"kind": "static"}}


def run_of(folder: Path, code: Path | str, name: str = "score") -> Record:
    raw = tiny(folder, RUN) | {"rewards": [{"function": f"{code}:{name}", "weight": 1.0}]}
    return Record.create(folder, raw)


def test_the_files_of_all_sections_are_found() -> None:
    raw = {
        "environment": {"tools": ["tools.py:add", "/a/b.py:Class.method"]},
        "rewards": [{"function": "exact_match"}, {"function": "package.module:name"}],
        "llm": "my_llm.py:MyLLM",
        "instruction": "Run x.py: it prints 3.\nThen see y.py:5 and go on.",
        "seed": 3,
    }
    references = ["tools.py", "/a/b.py", "package.module", "my_llm.py"]
    assert list(code_references(raw)) == references
    raw = {
        "environment": {"kind": "verifiers", "environment": "my-env"},
        "training": {"engine_args": {"actor_rollout_ref": {"model": {"external_lib": "mine"}}}},
    }
    assert list(code_references(raw)) == ["my_env", "mine"]


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("resume", "score"),
        ("resume", "a/b"),  # names that no object has: the file is run before they are looked up
        ("resume", "a:b"),
        ("evaluate", "score"),
        ("export", "score"),
    ],
)
def test_code_from_elsewhere_is_not_imported_unasked(
    verb: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Command
) -> None:
    code = tmp_path / "elsewhere" / "evil.py"
    code.parent.mkdir()
    code.write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    project = tmp_path / "mine"
    project.mkdir()
    monkeypatch.chdir(project)
    run = run_of(tmp_path / "run", code, name)
    for options in ([], ["--trust"]):
        status, _, error = run_command(verb, run.path, *options)
        assert status == 2
        # With --trust the next thing that is wrong is said: the file lacks the name, or the run is not finished.
        assert ("look at it, then add --trust" in error) == (not options)
        if not options:
            assert str(code) in error
            assert not code.with_suffix(".ran").exists()


def test_what_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    check_trusted(run_of(project / "runs" / "a", "rewards.py").path, False)
    check_trusted(run_of(project / "runs" / "b", project / "deep" / "rewards.py").path, False)
    check_trusted(run_of(tmp_path / "far", "package.module").path, False)
    # cotune writes no code into a run folder: whoever sent it did.
    folder = project / "runs" / "c"
    for code in (folder / "rewards.py", "../rewards.py", tmp_path / "rewards.py"):
        run = run_of(folder, code)
        with pytest.raises(ConfigError, match=r"rewards\.py; look at it, then add --trust"):
            check_trusted(run.path, False)
        check_trusted(run.path, True)
        run.config_path.unlink()
    run = run_of(folder, "runs.c.evil")
    (folder / "evil.py").touch()
    with pytest.raises(ConfigError, match=r"evil\.py; look at it, then add --trust"):
        check_trusted(run.path, False)


def test_a_key_is_sent_to_no_server_that_somebody_elses_run_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_on(name: str, **arguments: str) -> Path:
        training = {"engine": "tinker", "engine_args": arguments}
        return Record.create(tmp_path / name, tiny(tmp_path / name, {"training": training})).path

    foreign_run = run_on("theirs", base_url="https://me:secret@elsewhere.example/api")
    message = r"names the server https://\*\*\*@elsewhere.example/api, which would get your key: .* --trust"
    with pytest.raises(ConfigError, match=message):
        check_server(foreign_run, False, ())
    with pytest.raises(ConfigError, match="would get your key"):
        check_server(foreign_run, False, ("seed=3",))
    check_server(foreign_run, True, ())
    check_server(foreign_run, False, ("training.engine=trl",))
    check_server(foreign_run, False, ("training.engine_args={base_url: https://mine.example}",))
    check_server(foreign_run, False, ("training.engine_args={}",))
    check_server(run_on("local", base_url="http://127.0.0.1:8000"), False, ())
    check_server(run_on("hosted"), False, ())
    monkeypatch.setenv("TINKER_BASE_URL", "https://me:secret@elsewhere.example/api")
    check_server(foreign_run, False, ())
