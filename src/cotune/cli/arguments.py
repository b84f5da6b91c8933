"""The arguments and options of the commands, with their help texts."""

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN.yaml", help="The run file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="A run's folder.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field in place of the file's, by its dotted path, with a value as YAML: "
        "training.steps=600. Can be given several times.",
    ),
]
WeightsFormat = Annotated[
    str | None,
    typer.Option(
        help="full or, of a run with policy.lora, adapter or merged into its base; what best/ is "
        "by default."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing while it runs.")]
DemoFolder = Annotated[
    Path,
    typer.Option(
        "--output", help="The folder; a stopped demo in it is resumed, a finished one renamed."
    ),
]
DemoSeed = Annotated[
    int, typer.Option("--seed", min=0, help="Of the questions' order and all draws.")
]

# ---- options of `baseline`

Model = Annotated[
    str | None,
    typer.Option(help="A model at an OpenAI-compatible endpoint, in place of the policy."),
]
BaseURL = Annotated[
    str | None, typer.Option(help="That endpoint, without /chat/completions; OpenAI's if none.")
]
APIKeyEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The environment variable that holds its key; OPENAI_API_KEY of OpenAI's endpoint, "
        "of others none.",
    ),
]

# ---- options of `evaluate`

Split = Annotated[
    str | None,
    typer.Option(help="test, validation or train; test by default, and with --benchmark none."),
]
Benchmarks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=PATH]",
        help="Other questions than the run's: hotpotqa, 2wikimultihopqa, musique, bamboogle, nq, "
        "triviaqa, popqa, aime24, aime25, amc, math-500, minerva or olympiadbench, from the "
        "Hugging Face hub or from a file. Can be given several times.",
    ),
]
Samples = Annotated[
    str,
    typer.Option(
        metavar="K",
        help="Sampled rollouts a question besides the greedy one, for avg@K and pass@K; auto: "
        "16 on sets of fewer than 100 questions, else 1.",
    ),
]
Temperature = Annotated[
    float | None, typer.Option(help="Of sampled rollouts; the run's by default.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        help="reward, exact_match, f1 or boxed; all that apply by default. Can be given several "
        "times."
    ),
]
Limit = Annotated[int | None, typer.Option(help="Only the first so many questions of each set.")]
WhichPolicy = Annotated[
    str, typer.Option(help="best, or initial: the policy before training beside it.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="The figures as JSON, and nothing else.")]
OutputFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Where the same JSON is written, too.")
]

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Two small steps of it with a bundled policy in the model's place, and offline "
        "rules in the LLM's; nothing is fetched or left behind.",
    ),
]
AskLLM = Annotated[
    bool, typer.Option("--ask-llm", help="With --dry-run: ask the run file's LLM for real.")
]

Corpus = Annotated[Path, typer.Option(help="JSON Lines of passages: id and contents.")]
IndexKind = Annotated[str, typer.Option(help="bm25, or dense for embeddings and faiss.")]
IndexFolder = Annotated[
    Path | None,
    typer.Option(help="The index, built if it is not there; CORPUS.bm25 or CORPUS.dense."),
]
Encoder = Annotated[
    str | None,
    typer.Option(help="Dense: a sentence-transformers model; intfloat/e5-base-v2 if none."),
]
QueryPrefix = Annotated[
    str | None, typer.Option(help="Dense: before each query; the model's own if none.")
]
PassagePrefix = Annotated[
    str | None, typer.Option(help="Dense: before each passage; the model's own if none.")
]
TitleWeight = Annotated[int, typer.Option(min=0, help="BM25: how often a passage's title counts.")]
Host = Annotated[
    str, typer.Option(help="0.0.0.0 opens it to the network; it asks nobody for a password.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
TopK = Annotated[int, typer.Option(help="Passages where a request does not say.")]

SuiteFile = Annotated[Path | None, typer.Argument(metavar="[SUITE.yaml]", help="The suite file.")]
SuiteDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check every run file, say what would be run.")
]
ListMethods = Annotated[
    bool, typer.Option("--methods", help="List what a suite can name, and stop.")
]
PlanSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        help="Run this many steps for real, in a temporary folder, and say what they took. "
        "LLM calls are real ones.",
    ),
]
PlanProcesses = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        help="How many FSDP or DeepSpeed will spread it over, for the memory.",
    ),
]
