"""The arguments and options of the commands, with their help texts."""

from pathlib import Path
from typing import Annotated, Any

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")]


def _set(file: str, examples: str) -> Any:
    text = f"Override a field of the {file} file; VALUE is YAML, as in {examples}. Can be repeated."
    return typer.Option("--set", metavar="FIELD=VALUE", help=text)


Overrides = Annotated[list[str] | None, _set("run", "training.steps=600")]
SuiteOverrides = Annotated[
    list[str] | None,
    _set("suite", "seeds=[0] or base.training.steps=600 (if `base` holds the fields themselves)"),
]
WeightsFormat = Annotated[
    str | None,
    typer.Option(
        metavar="full|adapter|merged",
        help="full; for a run with policy.lora also adapter, or merged into its base. Default: "
        "the format of best/.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Print no progress.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        metavar="",
        help="Run Python files that the folder's run.yaml names outside the current folder.",
    ),
]
DemoFolder = Annotated[
    Path,
    typer.Option(
        "--output",
        help="Output folder. A stopped demo there is resumed, a finished one shown again.",
    ),
]
DemoSeed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed.")]

# ---- options of `evaluate`

Split = Annotated[
    str | None,
    typer.Option(
        metavar="test|validation|train",
        help="Which questions. Default: test, or none if --benchmark is given.",
    ),
]
Benchmarks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=PATH]",
        help="Evaluate on a benchmark, from the Hugging Face hub or from a file: hotpotqa, "
        "2wikimultihopqa, musique, bamboogle, nq, triviaqa, popqa, aime24, aime25, amc, "
        "math-500, minerva or olympiadbench. Can be repeated.",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        help="Sampled rollouts per question, in addition to the greedy one, for avg@K and pass@K. "
        "Default: 0; with --quadrants 4.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature. Default: the run's.")
]
Limit = Annotated[
    int | None, typer.Option(help="Evaluate only the first LIMIT questions of each set.")
]
WhichPolicy = Annotated[
    str,
    typer.Option(metavar="best|initial", help="initial: also evaluate the policy before training."),
]
Quadrants = Annotated[
    bool,
    typer.Option(
        "--quadrants",
        metavar="",
        help="Score {initial, trained weights} × {initial, best instruction} and the divergence of "
        "the trained policy, and write them to the run folder, for its report.",
    ),
]
Since = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="With --quadrants, for a run that continued other runs: the folder of the first of them. "
        "Its initial policy and instruction are the ones to compare with.",
    ),
]
AsJSON = Annotated[
    bool, typer.Option("--json", metavar="", help="Print only the figures, as JSON.")
]

SuiteFile = Annotated[Path | None, typer.Argument(metavar="[SUITE.yaml]", help="The suite file.")]
SuiteDryRun = Annotated[
    bool,
    typer.Option("--dry-run", metavar="", help="Check every run file and show what would run."),
]
ListMethods = Annotated[
    bool, typer.Option("--methods", metavar="", help="List the methods that a suite can name.")
]
PlanSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        help="Also run this many steps in a temporary folder and measure them. LLM calls are real.",
    ),
]
PlanProcesses = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        help="Number of training processes, one per GPU; veRL's run files set it themselves.",
    ),
]
PlanQuestions = Annotated[
    str | None,
    typer.Option(
        "--questions",
        metavar="TRAIN,VALIDATION,TEST",
        help="Plan for this many questions instead of reading the data.",
    ),
]
