"""The command line. Errors that a user can mend are one line and exit status 2."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cotune.contracts import ConfigError, CotuneError

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


@app.command()
def train(run_file: RunFile, quiet: Quiet = False) -> None:
    """Train a run file from the start."""
    from rich.console import Console

    from cotune import commands

    commands.train(run_file, Console(), quiet)


@app.command()
def resume(run_folder: RunFolder, quiet: Quiet = False) -> None:
    """Go on with a run that was stopped, from its newest whole checkpoint."""
    from rich.console import Console

    from cotune import commands

    commands.resume(run_folder, Console(), quiet)


@app.command()
def evaluate(
    run_folder: RunFolder,
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
) -> None:
    """Evaluate a run's best policy under its best and its initial instruction."""
    from rich.console import Console

    from cotune import commands

    commands.evaluate(run_folder, Console(), split)


@app.command()
def plan(run_file: RunFile) -> None:
    """Say what a run will spend at most, before anything is spent."""
    from rich.console import Console

    from cotune import commands

    commands.plan(run_file, Console())


@app.command()
def report(run_folder: RunFolder) -> None:
    """Write the report of a run, finished or not."""
    from cotune.experiments.report import write_report

    typer.echo(write_report(run_folder))


def main() -> None:
    """Entry point of `cotune`."""
    try:
        app()
    except ConfigError as error:
        typer.echo(f"cotune: {error}", err=True)
        sys.exit(2)
    except CotuneError as error:
        typer.echo(f"cotune: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        typer.echo("cotune: stopped; go on with: cotune resume RUN_FOLDER", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
