"""The command line: the commands, their options and help. User errors print one line and exit with status 2."""

import shlex
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cotune.errors import ConfigError, CotuneError, EvolutionError, Stopped
from cotune.utils.file_errors import file_failure
from cotune.utils.processes import launched_rank, stopped_by_sigterm
from cotune.utils.text import hide_secrets, one_line

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="cotune",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Trains an LLM agent's weights and its prompt together.",
)

_START = "Set up and check"
_RUN = "Train"
_RESULTS = "Look at results and ship"
_SUITES = "Compare methods"


def _command(panel: str, example: str, name: str | None = None) -> Callable[[Any], Any]:
    """Add a command to a group of the help, with an example below its own help."""
    return app.command(name, rich_help_panel=panel, epilog=f"Example: cotune {example}")


def _set(file: str, examples: str) -> Any:
    text = f"Override a field of the {file} file; VALUE is YAML, as in {examples}. Can be repeated."
    return typer.Option("--set", metavar="FIELD=VALUE", help=text)


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, metavar="", help=text)


_SPLITS = "train|validation|test"
_TRUST = (
    "Run Python files that run.yaml names in the run folder itself, or outside the current folder."
)

# Options of several commands.
RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")]
Overrides = Annotated[list[str] | None, _set("run", "training.steps=600")]
Quiet = Annotated[bool, _flag("--quiet", "Print no progress.")]
Trust = Annotated[bool, _flag("--trust", _TRUST)]
SomeSplit = Annotated[
    Literal["train", "validation", "test"],
    typer.Option("--split", metavar=_SPLITS, help="Which questions."),
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Evaluate only the first LIMIT questions of each set.")
]


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"cotune {version('cotune')}")
        raise typer.Exit


@app.callback()
def cotune(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Trains an LLM agent's weights and its prompt together."""


@_command(_START, "init my-agent --kind tools")
def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Folder to write to; created if it does not exist."),
    ] = Path(),
    kind: Annotated[
        Literal["single-turn", "tools", "search"] | None,
        typer.Option(metavar="single-turn|tools|search", help="What to train."),
    ] = None,
    offline: Annotated[
        bool, _flag("--offline", "A starter that trains immediately, without a key or a network.")
    ] = False,
) -> None:
    """Write a commented starter run file and the files that it names."""
    from cotune.cli.starter import KINDS, OFFLINE, write_starter

    if offline == (kind is not None):
        kinds = "; ".join(f"{name}: {text}" for name, text in KINDS.items())
        raise ConfigError(f"expected either --kind, with {kinds}; or --offline")
    for path in write_starter(kind or OFFLINE, folder):
        typer.echo(f"wrote {path}")
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    typer.echo(f"next: {enter}cotune {'train' if offline else 'try'} run.yaml")


@_command(_START, "try run.yaml -n 8 --set limits.turn_tokens=256", "try")
def try_(
    run_file: RunFile,
    count: Annotated[
        int, typer.Option("-n", min=1, help="Number of rollouts, each of a different question.")
    ] = 4,
    split: SomeSplit = "train",
    greedy: Annotated[bool, _flag("--greedy", "Decode greedily, as evaluation does.")] = False,
    set_: Overrides = None,
) -> None:
    """Show a few rollouts of a run file's policy, coloured by trained tokens, with their rewards.

    Trains nothing, writes nothing and calls no LLM.
    """
    from cotune.cli.evaluate import try_run

    try_run(run_file, _console(), count, split, greedy, set_ or ())


@_command(_RUN, "train run.yaml --set training.steps=600")
def train(run_file: RunFile, set_: Overrides = None, quiet: Quiet = False) -> None:
    """Train a run file from the start."""
    from cotune.cli.train import train as train_

    train_(run_file, _console(), quiet, set_ or ())


@_command(_RUN, "resume runs/my-agent")
def resume(
    run_folder: RunFolder, set_: Overrides = None, quiet: Quiet = False, trust: Trust = False
) -> None:
    """Resume a stopped run from its newest complete checkpoint.

    A finished run continues if it is given more steps or rollouts (--set training.steps=…).
    """
    from cotune.cli.train import resume as resume_
    from cotune.cli.trust import check_trusted

    check_trusted(run_folder, trust)
    resume_(run_folder, _console(), quiet, set_ or ())


@_command(_RESULTS, "evaluate runs/my-agent --samples 4")
def evaluate(
    run_folder: RunFolder,
    split: Annotated[
        Literal["train", "validation", "test"] | None,
        typer.Option(
            metavar=_SPLITS,
            help="Which questions. Default: test, or none if --benchmark or --questions is given.",
        ),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=PATH]",
            help="Evaluate on a benchmark, from the Hugging Face hub or from a file: hotpotqa, 2wikimultihopqa, "
            "musique, bamboogle, nq, triviaqa, popqa, aime24, aime25, amc, math-500, minerva or olympiadbench. "
            "Can be repeated.",
        ),
    ] = None,
    questions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Evaluate on a file of questions in the form of the run's own data; a script's run keeps no "
            "questions. Can be repeated.",
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            metavar="K",
            min=0,
            help="Sampled rollouts per question, in addition to the greedy one, for avg@K and pass@K; with "
            "--quadrants 4 instead of 0.",
        ),
    ] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.01, max=100, help="Sampling temperature. Default: the run's."),
    ] = None,
    limit: Limit = None,
    quadrants: Annotated[
        bool,
        _flag(
            "--quadrants",
            "Score {initial, trained weights} × {initial, best instruction} and the divergence of the trained "
            "policy, and write them to the run folder, for its report.",
        ),
    ] = False,
    since: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="With --quadrants, for a run that continued other runs: the folder of the first of them. Its "
            "initial policy and instruction are the ones to compare with.",
        ),
    ] = None,
    as_json: Annotated[bool, _flag("--json", "Print only the figures, as JSON.")] = False,
    set_: Overrides = None,
    trust: Trust = False,
) -> None:
    """Evaluate a run's best policy under its best and initial instruction, and with its best hint.

    Evaluates on held-out questions, greedy and sampled, overall and by stratum. Without --quadrants,
    writes nothing into the run folder; --set applies to this evaluation only.
    """
    from cotune.cli.evaluate import evaluate as evaluate_
    from cotune.cli.evaluate import show_quadrants
    from cotune.cli.trust import check_server, check_trusted
    from cotune.experiments.evaluate.questions import EvaluationOptions

    if not quadrants and since is not None:
        raise ConfigError("--since was given without --quadrants; remove it, or add --quadrants")
    evaluation = EvaluationOptions(
        split=split,
        benchmarks=benchmark or (),
        questions=questions or (),
        samples=samples or 4 * quadrants,
        temperature=temperature,
        limit=limit,
    )
    check_trusted(run_folder, trust)
    check_server(run_folder, trust, set_ or ())
    if quadrants:
        show_quadrants(run_folder, _console(), evaluation, since, as_json, set_ or ())
    else:
        evaluate_(run_folder, _console(), evaluation, as_json, set_ or ())


@_command(_RESULTS, "measure runs/grpo runs/inspo --reworded lineage --then next.yaml")
def measure(
    run_folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_FOLDER...", help="Runs' folders.")
    ],
    reworded: Annotated[
        str,
        typer.Option(
            metavar="FILE|lineage",
            help="Also score the initial and the best policy under the instructions of a file, separated as in a "
            "bank, or under all that any of the runs had.",
        ),
    ] = "",
    then: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TASK.yaml",
            help="Train this task next, from the best and from the initial policy: a run file, or only the fields "
            "in which it differs from the run's. Repeated, the tasks follow each other.",
        ),
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            min=1,
            help="With --then: trainings at a time, spread over the GPUs that CUDA_VISIBLE_DEVICES lists.",
        ),
    ] = 1,
    split: SomeSplit = "validation",
    limit: Limit = None,
    output: Annotated[
        Path, typer.Option(help="Folder of measure.json, of the report, and of the runs of --then.")
    ] = Path("runs/measure"),
    trust: Trust = False,
) -> None:
    """Measure how far runs have drifted for their score, and whether they can still learn.

    Divergence from the initial policy and scores along the checkpoints; the scores under other words; the next
    tasks, learned one after the other and from the initial policy. The same command goes on after a stop.
    """
    from cotune.cli.trust import check_trusted
    from cotune.engines.preflight import Preflight
    from cotune.experiments.evaluate.questions import EvaluationOptions
    from cotune.experiments.measure import measure as measure_

    evaluation = EvaluationOptions(split=split, limit=limit)
    for folder in run_folders:
        check_trusted(folder, trust)
    measure_(
        run_folders, _console(), evaluation, reworded, then or (), output,
        lambda config: Preflight(config, new=False).require(machine_checks=()), at_once,
    )  # fmt: skip


@_command(_START, "plan run.yaml --steps 2")
def plan(
    run_file: RunFile,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Also run this many steps in a temporary folder and measure them. LLM calls are real.",
        ),
    ] = None,
    questions: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN,VALIDATION,TEST",
            help="Plan for this many questions instead of reading the data.",
        ),
    ] = None,
    set_: Overrides = None,
) -> None:
    """Estimate a run's rollouts and cost without running it; with --steps also its time and memory."""
    from cotune.cli.plan import plan as plan_
    from cotune.cli.plan import plan_by_steps

    if questions is not None and steps is not None:
        raise ConfigError(
            "--questions plans without the data, and --steps trains on it; expected one of them"
        )
    console = _console()
    plan_(run_file, console, set_ or (), questions)
    if steps is not None:
        plan_by_steps(run_file, console, steps, set_ or ())


@_command(_START, "doctor run.yaml")
def doctor(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.yaml]", help="Run file to check as well.")
    ] = None,
    set_: Overrides = None,
) -> None:
    """Check the installation, the machine and a run file.

    Exits with status 1 if anything is missing.
    """
    from cotune.cli.doctor import show

    if not show(run_file, _console(), set_ or ()):
        raise typer.Exit(1)


@_command(_RESULTS, "export runs/my-agent --merge")
def export(
    run_folder: RunFolder,
    merge: Annotated[
        bool, _flag("--merge", "Merge the adapter of a run with policy.lora into its base.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Output folder. Default: export in the run's folder.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Write a finished run's best policy, with everything needed to serve it, to a folder."""
    from cotune.cli.trust import check_trusted
    from cotune.config.library_settings import quiet_libraries
    from cotune.config.resuming import open_trained
    from cotune.export.export import export as export_

    check_trusted(run_folder, trust)
    quiet_libraries(open_trained(run_folder)[1])
    with stopped_by_sigterm():
        written = export_(run_folder, merge, output)
    _console().print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)


@_command(_RESULTS, "report runs/my-agent")
def report(run_folder: RunFolder) -> None:
    """Write the report of a run, finished or unfinished. cotune compare writes a suite's."""
    from cotune.experiments.report.run_report import write_report

    typer.echo(write_report(run_folder))


@_command(_SUITES, "compare suite.yaml --dry-run")
def compare(
    suite: Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="The suite file.")],
    dry_run: Annotated[
        bool, _flag("--dry-run", "Check every run file and show what would run.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        _set(
            "suite", "seeds=[0] or base.training.steps=600 (if `base` holds the fields themselves)"
        ),
    ] = None,
) -> None:
    """Run methods over seeds at equal numbers of policy rollouts, and compare them.

    Skips runs that are already finished in the suite's folder. Exits with status 1 if a method
    failed; the other methods are still reported.
    """
    from cotune.experiments.compare import running

    console = _console()
    if dry_run:
        from cotune.engines.preflight import Preflight
        from cotune.utils.progress import step_progress

        with step_progress(console):
            configs = running.dry_run(suite, console, set_ or ())
            for config in configs:
                Preflight(config, new=False).require(machine_checks=())
        console.print(f"run files of the first seed: {len(configs)}, all valid; nothing was run")
    else:
        running.compare(suite, console, set_ or ())


@_command(_SUITES, "demo --output runs/demo")
def demo(
    output: Annotated[
        Path,
        typer.Option(
            help="Output folder. A stopped demo there is resumed, a finished one shown again."
        ),
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")] = 0,
) -> None:
    """Compare static, staged and joint training of a bundled policy; takes minutes."""
    from cotune.experiments.compare import running

    running.demo(output, seed, _console())


def _console() -> "Console":
    """Return a command's console; under torchrun, only the first process prints."""
    from rich.console import Console

    return Console(quiet=launched_rank() != 0)


def main() -> None:
    """Run the `cotune` command line; here every command ends."""
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # it may not encode "…", or a question
    try:
        try:
            app()
        finally:
            # It is None where the shell has closed it (>&-).
            if sys.stdout:
                sys.stdout.flush()
    except Exception as error:  # libraries have errors of their own for files
        status, text = _verdict(error)
        if not text:
            raise
        # Every process prints the error, because torchrun stops the others after the first failure.
        rank = f" (rank {launched_rank()})" if launched_rank() else ""
        typer.echo(f"cotune{rank}: {text}", err=True)
        sys.exit(status)


def _verdict(error: Exception) -> tuple[int, str]:
    """Return the exit status and a one-line message for an error; "" for one that needs its traceback."""
    if isinstance(error, CotuneError):
        if isinstance(error, Stopped):
            status = 130
        else:
            status = 2 if isinstance(error, ConfigError | EvolutionError) else 1
        return status, hide_secrets(one_line(str(error)))
    failure = file_failure(error)
    return 2, f"{failure}, then: run the command again" if failure else ""
