"""Takes the fake engine through every command, in one process. Prints "done" at its end."""

import sys
from pathlib import Path
from typing import Any

from cotune.utils import packages

# All that adding an engine takes outside its package.
packages.ENGINES = {**packages.ENGINES, "fake": "tests.engines.fake_engine"}

import yaml  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from cotune.cli.app import app  # noqa: E402
from cotune.errors import Stopped  # noqa: E402
from cotune.experiments import chains  # noqa: E402
from cotune.run.run_dir import RunDir  # noqa: E402
from tests.run_files import tiny, write  # noqa: E402


def call(*words: object, stopped: bool = False) -> str:
    """What a command prints; it must succeed, or be stopped."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if stopped:
        assert isinstance(result.exception, Stopped), result.output
        return str(result.exception)
    assert result.exit_code == 0, (words, result.output, result.exception)
    return result.output


class Done:
    """A child process that has ended well."""

    def poll(self) -> int:
        return 0

    def wait(self) -> int:
        return 0

    def terminate(self) -> None:
        pass


def start(words: Any, log: Path, threads: int | None, gpu: str | None) -> Any:
    """In place of a process of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(call(*words))
    return Done()


def raw(output: Path, **training: Any) -> dict[str, Any]:
    changes = {"training": {"engine": "fake", **training}, "strategy": {"kind": "static"}}
    return tiny(output, changes)


def main(folder: Path) -> None:
    file, out = folder / "run.yaml", folder / "out"
    write(file, raw(out, engine_args={"stop_at": 2}))
    assert "training.engine: fake" in call("doctor", file)
    assert "what it spends at most" in call("plan", file)
    assert "resume with: cotune resume" in call("train", file, stopped=True)
    assert RunDir.open(out).read_summary() is None
    call("resume", out)
    assert [row["step"] for row in RunDir.open(out).read_metrics()] == [1, 2, 3]
    (out / "damaged").touch()
    file_bytes = (out / "run.yaml").read_bytes()
    refused = CliRunner().invoke(app, ["resume", str(out), "--set", "training.steps=4"])
    assert "is damaged" in str(refused.exception), refused.output
    assert (out / "run.yaml").read_bytes() == file_bytes  # nothing was set
    (out / "damaged").unlink()
    call("resume", out, "--set", "training.steps=4")
    summary = RunDir.open(out).read_summary()
    assert summary is not None
    assert summary["arms"]["static"]["steps"] == 4
    call("evaluate", out, "--limit", 1)
    assert str(out) in call("report", out)
    call("export", out, "--output", folder / "exported")
    assert "tiny" in (folder / "exported" / "README.md").read_text()
    suite = {
        "name": "small", "output": str(folder / "suite"), "base": raw(folder / "unused"),
        "seeds": [0], "budget": 40, "baseline": "grpo", "methods": ["grpo"],
    }  # fmt: skip
    (folder / "suite.yaml").write_text(yaml.safe_dump(suite))
    assert "run files of the first seed: 1, all valid" in call(
        "compare", folder / "suite.yaml", "--dry-run"
    )
    chains.start = start
    call("compare", folder / "suite.yaml")
    assert "grpo" in (folder / "suite" / "summary.json").read_text()
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
