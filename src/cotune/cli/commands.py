"""What the commands do; `cli` parses, this module imports engines only when one is needed."""

import os
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cotune.cli.plan.memory_table import show_memory
from cotune.config.build import build_llm, describe_llm
from cotune.config.cost import Plan, plan_run
from cotune.config.overrides import with_overrides
from cotune.config.resuming import resumed_config
from cotune.config.run_file import RunConfig, dump_config, load_config, parse_config
from cotune.data.math_data import hub_name
from cotune.engines.run_summary import write_run_summary
from cotune.environments.math import MathOptions
from cotune.errors import ConfigError, Stopped
from cotune.llm.client import OpenAIOptions
from cotune.policy.paths import policy_path
from cotune.protocols import Environment
from cotune.run.console import RunJournal, score_table
from cotune.run.journal import Journal, SilentJournal
from cotune.run.json_files import write_atomic
from cotune.run.ledger import Ledger
from cotune.run.locks import run_locked
from cotune.run.run_dir import RunDir
from cotune.utils.packages import check_engine
from cotune.utils.text import one_line

if TYPE_CHECKING:
    from cotune.engines.evaluation import Outcome
    from cotune.engines.trl.setup import Loaded
    from cotune.experiments.evaluate.evaluating import EvaluationOptions


def train(
    path: Path, console: Console, quiet: bool = False, assignments: Sequence[str] = ()
) -> Path:
    """Trains a run file, with some fields set, from the start; returns the run folder."""
    config = load_config(path, assignments=assignments)
    RunDir.check_free(config.output)
    if config.training.engine == "verl":
        return _on_verl(config, config.output, console, quiet, resume=False)
    with _resumable(config.output):
        setup = prepare(config, config.output)
        run = _created(config)
        with run_locked(run.path):
            _execute(config, run, setup, console, quiet, resume=False)
    return run.path


def resume(
    folder: Path, console: Console, quiet: bool = False, assignments: Sequence[str] = ()
) -> Path:
    """Goes on from the newest whole checkpoint of a run folder.

    Fields that are set are written into its run.yaml before it goes on.
    """
    run, was = _open(folder)
    config = resumed_config(run, was, assignments)
    if config.training.engine == "verl":
        return _on_verl(config, folder, console, quiet, resume=True)
    with _resumable(folder), run_locked(folder):
        setup = prepare(config, folder)
        if assignments:
            _replace_config(run, config)
        _execute(config, run, setup, console, quiet, resume=True)
    return run.path


def _on_verl(
    config: RunConfig, folder: Path, console: Console, quiet: bool, *, resume: bool
) -> Path:
    """Trains or goes on by veRL, in processes of its own."""
    check_engine(config.training.engine)
    _check_llm(config)
    quiet_libraries(config)
    from cotune.engines.verl import run as verl

    with _resumable(folder):
        setup = verl.prepare(config, RunDir(folder, attempt=1).checkpoints_path)
        shown = Console(quiet=True) if quiet else console
        run = RunDir.open(folder) if resume else RunDir.create(folder, dump_config(config))
        with run_locked(folder):
            if resume:
                run.replace_config(dump_config(config))  # what was set, once it is found good
            shown.print(_headline(config, run), markup=False, highlight=False)
            verl.train(config, run, resume, setup, shown, conclude)
    return run.path


def baseline(
    name: str,
    path: Path,
    console: Console,
    quiet: bool = False,
    assignments: Sequence[str] = (),
    *,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
) -> Path:
    """Scores a baseline that trains nothing on a run file's test split; returns the run folder.

    Args:
        name: one of `cotune.experiments.baselines.BASELINES`.
        path: the run file; its strategy is not used.
        console: where to show.
        quiet: show nothing.
        assignments: fields that are set, as in --set.
        model, base_url, api_key_env: an endpoint in place of the run file's policy.
    """
    from cotune.experiments.baselines.baseline_run import Endpoint, run_baseline

    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    shown = Console(quiet=True) if quiet else console
    return run_baseline(name, config, shown, Endpoint(model, base_url, api_key_env))


def _replace_config(run: RunDir, config: RunConfig) -> None:
    """Writes run.yaml, in the first process."""
    from cotune.engines.comm import world

    comm = world()
    if comm.rank == 0:
        run.replace_config(dump_config(config))
    comm.broadcast(None)


def _open(folder: Path) -> tuple[RunDir, RunConfig]:
    """A run folder that a run file made, and that run file."""
    run = RunDir.open(folder)
    raw = run.read_config()
    if "library" in raw:
        raise ConfigError(
            f"{folder}: belongs to a program with a GRPOTrainer of its own; go on there, with "
            "trainer.train(resume_from_checkpoint=True)"
        )
    if any("baseline" in row for row in run.read_events()):
        raise ConfigError(
            f"{folder}: made by cotune baseline, which trains nothing; run it again with another output"
        )
    return run, parse_config(raw, str(run.config_path))


@contextmanager
def _resumable(folder: Path) -> Generator[None]:
    """Turns Ctrl-C into one line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if RunDir.is_run(folder):
            raise Stopped(f"stopped; go on with: cotune resume {folder}") from None
        raise Stopped("stopped before anything was written") from None


def prepare(config: RunConfig, folder: Path) -> "Loaded":
    """Checks all that can be wrong, what is cheap first; writes nothing."""
    check_engine(config.training.engine)
    _check_llm(config)
    quiet_libraries(config)
    checkpoints = RunDir(folder, attempt=1).checkpoints_path
    if config.strategy.kind == "sft":
        from cotune.engines.trl import sft

        return sft.prepare(config, checkpoints)
    from cotune.engines.trl import setup

    return setup.prepare(config, checkpoints)


def _check_llm(config: RunConfig) -> None:
    """The cheapest checks: that there is a policy of this name, and the optimizer LLM's key."""
    policy_path(config.policy.path)
    with Ledger(":memory:") as ledger:
        build_llm(config, ledger)


def _created(config: RunConfig) -> RunDir:
    """The new run folder: made by the first process, there for all when this returns."""
    from cotune.engines.comm import world

    comm = world()
    if comm.rank == 0:
        run = RunDir.create(config.output, dump_config(config))
    else:
        run = RunDir(config.output, attempt=1)
    comm.broadcast(None)
    return run


def evaluate(
    folder: Path,
    console: Console,
    options: "EvaluationOptions",
    *,
    as_json: bool = False,
    output: Path | None = None,
    assignments: Sequence[str] = (),
) -> None:
    """Scores a run's best policy; prints tables, or JSON alone, and writes that where it is to."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise ConfigError(f"--output is {output}; expected a file in a folder that exists")
    run, config = _open(folder)
    if assignments:
        config = parse_config(
            with_overrides(run.read_config(), assignments), f"{run.config_path} with --set"
        )
    if any("=" not in given for given in options.benchmarks):
        # Else what follows would set it for a local policy.
        os.environ.setdefault("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE") or "0")
    quiet_libraries(config)
    from cotune.experiments.evaluate.evaluating import evaluate_run
    from cotune.experiments.evaluate.evaluation_table import json_text, show

    evaluation = evaluate_run(config, run, options)
    if output is not None:
        write_atomic(output, json_text(evaluation))
    if as_json:
        sys.stdout.write(json_text(evaluation))
    else:
        show(evaluation, console)


def export(
    folder: Path, console: Console, format: str | None = None, output: Path | None = None
) -> Path:
    """Writes a finished run's best policy into a folder; returns it."""
    from cotune.export.export import export as export_best
    from cotune.export.export import open_finished

    quiet_libraries(open_finished(folder)[1])
    written = export_best(folder, format, output)
    console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)
    return written


def push(
    folder: Path, repo_id: str, console: Console, format: str | None = None, private: bool = False
) -> str:
    """Uploads a finished run's best policy to a repository of the hub; returns its address."""
    # Else what follows would set it for a local policy.
    os.environ.setdefault("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE") or "0")
    from cotune.export.export import open_finished
    from cotune.export.push import push as push_best

    quiet_libraries(open_finished(folder)[1])

    address = push_best(folder, repo_id, format, private)
    console.print(f"pushed to {address}", markup=False, highlight=False, soft_wrap=True)
    return address


def plan(path: Path, console: Console, assignments: Sequence[str] = (), processes: int = 1) -> None:
    """Prints what a run will spend at most, before anything is spent."""
    config = load_config(path, assignments=assignments)
    table = Table(
        title=f"{escape(config.name)}: what it spends at most",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("rollouts", justify="right")
    table.add_column("generated tokens", justify="right")
    per_rollout = config.limits.turns * config.limits.turn_tokens
    planned = plan_run(config)
    for purpose, count in planned.rollouts.items():
        table.add_row(purpose, f"{count:,}", f"{count * per_rollout:,}")
    console.print(table)
    console.print(
        f"LLM: {describe_llm(config)}; at most {planned.calls:,} proposals{_price(config, planned)}",
        markup=False,
    )
    console.print(
        f"Tokens are upper bounds: {config.limits.turns} turns of {config.limits.turn_tokens} each."
    )
    if planned.rows is not None:
        console.print(f"SFT: at most {planned.rows:,} rows, {planned.steps:,} optimizer steps.")
    elif config.training.rollout_budget is not None:
        console.print(
            f"Training ends before a batch that would take training, verification and evolution "
            f"over {config.training.rollout_budget:,} rollouts; an evolution that falls due just "
            "before may."
        )
    show_memory(config, console, processes)


def plan_prompt(path: Path, console: Console, assignments: Sequence[str] = ()) -> None:
    """Prints one prompt of the run file as its policy will see it."""
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    from cotune.cli.try_rollouts import show_prompt

    show_prompt(config, console)


def _price(config: RunConfig, planned: Plan) -> str:
    if not isinstance(config.llm, OpenAIOptions) or planned.price is None:
        return ", free of charge"
    text = f", at most {planned.price:.2f} at the prices of llm"
    if config.llm.budget is not None:
        text += f"; stopped at the budget of {config.llm.budget:.2f}"
    return text


def _execute(
    config: RunConfig, run: RunDir, setup: "Loaded", console: Console, quiet: bool, *, resume: bool
) -> None:
    """Trains; the first process shows it, writes it down and reports it."""
    from cotune.engines.comm import world

    if world().rank != 0:
        _trained(config, run, SilentJournal(), resume, setup)
        return
    shown = Console(quiet=True) if quiet else console
    shown.print(_headline(config, run), markup=False, highlight=False)
    journal = RunJournal(run, shown, config.training.steps, config.logging.trajectories_every)
    outcome = _trained(config, run, journal, resume, setup)
    conclude(config, run, journal, outcome, setup.environment, shown)


def _headline(config: RunConfig, run: RunDir) -> str:
    llm, what = describe_llm(config), f"{config.strategy.kind} on {config.environment.kind}"
    proposals = "" if llm == "none" else f"proposals by {llm}; "
    return f"{config.name}: {what}, seed {config.seed}; {proposals}folder {run.path}"


def conclude(
    config: RunConfig,
    run: RunDir,
    journal: Journal,
    outcome: "Outcome",
    environment: Environment,
    shown: Console,
) -> None:
    """Writes a finished run's summary, completes best/, reports, and shows what it is worth."""
    with Ledger(run.ledger_path) as ledger:
        journal.event("run_finished", outcome.steps + 1)
        write_run_summary(config, run, outcome, ledger)
    from cotune.experiments.report import write_report
    from cotune.export.complete import complete_best

    complete_best(config, run, environment)
    report = write_report(run.path)
    rows = [
        ("before", outcome.before),
        ("after", outcome.after),
        ("after, initial instruction", outcome.plain),
        *([("after, with the best hint", outcome.hinted)] if outcome.hinted else []),
    ]
    shown.print(score_table(f"Held-out {outcome.after.measure}", rows))
    shown.print(f"best instruction: {one_line(outcome.instruction)}", markup=False, highlight=False)
    shown.out(f"best policy: {run.best_path}\nreport: {report}", highlight=False)


def _trained(
    config: RunConfig, run: RunDir, journal: Journal, resume: bool, setup: "Loaded"
) -> "Outcome":
    """Trains by the trainer that the strategy asks for."""
    from cotune.engines.trl import run as grpo
    from cotune.engines.trl import sft
    from cotune.engines.trl.setup import Setup

    if isinstance(setup, sft.SFTSetup):
        return sft.train(config, run, journal, resume, setup)
    assert isinstance(setup, Setup)
    return grpo.train(config, run, journal, resume, setup)


def quiet_libraries(config: RunConfig) -> None:
    """Set in our own process alone: no telemetry, and no network where nothing is to be fetched."""
    # Of libraries about each other; nothing that a run file could change.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if not _may_fetch(config):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _may_fetch(config: RunConfig) -> bool:
    """Whether a run may need the Hugging Face hub: for its policy, its data, or code of its own."""
    policy, dataset = config.policy.path, config.dataset
    local = policy.startswith("bundled:") or Path(policy).is_dir()
    of_hub = dataset is not None and dataset.name is not None and not Path(dataset.name).is_dir()
    if isinstance(config.environment, MathOptions):
        named = (config.environment.train, config.environment.validation, config.environment.test)
        of_hub = any(isinstance(path, Path) and hub_name(path) for path in named)
    own = config.environment.kind in ("tools", "trl", "verifiers", "python")
    return not local or of_hub or own or any(":" in reward.function for reward in config.rewards)
