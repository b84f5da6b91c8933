"""The arguments and options of the commands, with their help texts."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def _set(file: str, examples: str) -> Any:
    text = f"Override a field of the {file} file; VALUE is YAML, as in {examples}. Can be repeated."
    return typer.Option("--set", metavar="FIELD=VALUE", help=text)


def _flag(name: str, text: str) -> Any:
    return typer.Option(name, metavar="", help=text)


RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")]
Overrides = Annotated[list[str] | None, _set("run", "training.steps=600")]
Quiet = Annotated[bool, _flag("--quiet", "Print no progress.")]
Trust = Annotated[
    bool,
    _flag(
        "--trust", "Run Python files that the folder's run.yaml names outside the current folder."
    ),
]

_SPLITS = "train|validation|test"
SomeSplit = Annotated[
    Literal["train", "validation", "test"],
    typer.Option("--split", metavar=_SPLITS, help="Which questions."),
]

# ---- options of `export`

_FORMATS = "full; for a run with policy.lora also adapter, or merged into its base. Default: the format of best/."
WeightsFormat = Annotated[
    Literal["full", "adapter", "merged"] | None,
    typer.Option(metavar="full|adapter|merged", help=_FORMATS),
]
ExportFolder = Annotated[
    Path | None,
    typer.Option("--output", help="Output folder. Default: export in the run's folder."),
]

# ---- options of `evaluate`

_SPLIT = "Which questions. Default: test, or none if --benchmark or --questions is given."
Split = Annotated[
    Literal["train", "validation", "test"] | None, typer.Option(metavar=_SPLITS, help=_SPLIT)
]
_BENCHMARKS = (
    "Evaluate on a benchmark, from the Hugging Face hub or from a file: hotpotqa, 2wikimultihopqa, musique, "
    "bamboogle, nq, triviaqa, popqa, aime24, aime25, amc, math-500, minerva or olympiadbench. Can be repeated."
)
Benchmarks = Annotated[list[str] | None, typer.Option(metavar="NAME[=PATH]", help=_BENCHMARKS)]
_OF_FILE = (
    "Evaluate on a file of questions in the form of the run's own data; a script's run keeps no questions. "
    "Can be repeated."
)
QuestionFiles = Annotated[
    list[Path] | None, typer.Option("--questions", metavar="FILE", help=_OF_FILE)
]
_SAMPLES = (
    "Sampled rollouts per question, in addition to the greedy one, for avg@K and pass@K; with --quadrants "
    "4 instead of 0."
)
Samples = Annotated[int, typer.Option(metavar="K", min=0, help=_SAMPLES)]
Temperature = Annotated[
    float | None, typer.Option(min=0.01, help="Sampling temperature. Default: the run's.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Evaluate only the first LIMIT questions of each set.")
]
_QUADRANTS = (
    "Score {initial, trained weights} × {initial, best instruction} and the divergence of the trained policy, "
    "and write them to the run folder, for its report."
)
Quadrants = Annotated[bool, _flag("--quadrants", _QUADRANTS)]
_SINCE = (
    "With --quadrants, for a run that continued other runs: the folder of the first of them. Its initial "
    "policy and instruction are the ones to compare with."
)
Since = Annotated[Path | None, typer.Option(metavar="RUN", help=_SINCE)]
AsJSON = Annotated[bool, _flag("--json", "Print only the figures, as JSON.")]

# ---- options of `measure`

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN_FOLDER...", help="Runs' folders.")]
_REWORDED = (
    "Also score the initial and the best policy under the instructions of a file, separated as in a bank, or under "
    "all that any of the runs had."
)
Reworded = Annotated[str, typer.Option(metavar="FILE|lineage", help=_REWORDED)]
_THEN = (
    "Train this task next, from the best and from the initial policy: a run file, or only the fields in which it "
    "differs from the run's. Repeated, the tasks follow each other."
)
Then = Annotated[list[Path] | None, typer.Option(metavar="TASK.yaml", help=_THEN)]
_MEASURED = "Folder of measure.json, of the report, and of the runs of --then."
MeasureFolder = Annotated[Path, typer.Option("--output", help=_MEASURED)]

# ---- options of `plan`

_STEPS = "Also run this many steps in a temporary folder and measure them. LLM calls are real."
PlanSteps = Annotated[int | None, typer.Option("--steps", min=1, help=_STEPS)]
_PROCESSES = "Number of training processes, one per GPU; veRL's run files set it themselves."
PlanProcesses = Annotated[int, typer.Option("--processes", min=1, help=_PROCESSES)]
_QUESTIONS = "Plan for this many questions instead of reading the data."
PlanQuestions = Annotated[
    str | None, typer.Option("--questions", metavar="TRAIN,VALIDATION,TEST", help=_QUESTIONS)
]

# ---- options of `compare` and `demo`

SuiteFile = Annotated[Path, typer.Argument(metavar="SUITE.yaml", help="The suite file.")]
_FIELDS = "seeds=[0] or base.training.steps=600 (if `base` holds the fields themselves)"
SuiteOverrides = Annotated[list[str] | None, _set("suite", _FIELDS)]
SuiteDryRun = Annotated[bool, _flag("--dry-run", "Check every run file and show what would run.")]
_DEMO = "Output folder. A stopped demo there is resumed, a finished one shown again."
DemoFolder = Annotated[Path, typer.Option("--output", help=_DEMO)]
DemoSeed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed.")]
