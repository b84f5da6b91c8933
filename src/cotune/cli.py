"""The command line. Errors that a user can mend are one line and exit status 2."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cotune.contracts import ConfigError, CotuneError, Stopped

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="cotune",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Trains an LLM agent's weights and its prompt together.",
)
RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing while it runs.")]
DemoFolder = Annotated[
    Path, typer.Option("--output", help="The folder; an earlier demo in it is renamed.")
]
DemoSeed = Annotated[
    int, typer.Option("--seed", min=0, help="Of the questions' order and all draws.")
]


@app.command()
def train(run_file: RunFile, quiet: Quiet = False) -> None:
    """Train a run file from the start."""
    from cotune import commands

    commands.train(run_file, _console(), quiet)


@app.command()
def resume(run_folder: RunFolder, quiet: Quiet = False) -> None:
    """Go on with a run that was stopped, from its newest whole checkpoint."""
    from cotune import commands

    commands.resume(run_folder, _console(), quiet)


@app.command()
def evaluate(
    run_folder: RunFolder,
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
) -> None:
    """Evaluate a run's best policy under its best and initial instruction, and its best hint."""
    from cotune import commands

    commands.evaluate(run_folder, _console(), split)


@app.command()
def plan(run_file: RunFile) -> None:
    """Say what a run will spend at most, before anything is spent."""
    from cotune import commands

    commands.plan(run_file, _console())


@app.command()
def report(run_folder: RunFolder) -> None:
    """Write the report of a run, finished or not."""
    from cotune.experiments.report import write_report

    typer.echo(write_report(run_folder))


@app.command()
def demo(output: DemoFolder = Path("runs/demo"), seed: DemoSeed = 0) -> None:
    """Train the bundled policy with INSPO and without, at equal policy rollouts; minutes."""
    from cotune.experiments.demo import Demo

    Demo().run(output, seed, _console())


@app.command("demo-p2o")
def demo_p2o(output: DemoFolder = Path("runs/demo-p2o"), seed: DemoSeed = 0) -> None:
    """Train the bundled policy with P²O and without, at equal policy rollouts; minutes."""
    from cotune.experiments.demo_p2o import DemoP2O

    DemoP2O().run(output, seed, _console())


def _console() -> "Console":
    """Where a command shows what it does: of processes that torchrun started, the first shows."""
    from rich.console import Console

    return Console(quiet=_rank() != 0)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def main() -> None:
    """Entry point of `cotune`."""
    try:
        app()
    except CotuneError as error:
        status, text = _verdict(error)
        # Every process says it: the first to fail is the last that torchrun lets speak.
        where = f" (rank {_rank()})" if _rank() else ""
        typer.echo(f"cotune{where}: {text}", err=True)
        sys.exit(status)


def _verdict(error: CotuneError) -> tuple[int, str]:
    """Exit status and what is said of an error, in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, Stopped):
        return 130, text
    if isinstance(error, ConfigError):
        return 2, text
    return 1, f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    main()
