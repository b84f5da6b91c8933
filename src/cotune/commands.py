"""What the commands do; `cli` parses, this module imports engines only when one is needed."""

import math
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.build import describe_llm
from cotune.config import RunConfig, dump_config, load_config, parse_config
from cotune.console import RunJournal, score_table
from cotune.contracts import ConfigError
from cotune.llm.client import OpenAIOptions
from cotune.llm.ledger import Ledger
from cotune.run_dir import RunDir
from cotune.strategies.inspo import InspoOptions

if TYPE_CHECKING:
    from cotune.engines.trl.run import Outcome
    from cotune.experiments.evaluate import Score


def train(path: Path, console: Console, quiet: bool = False) -> Path:
    """Trains a run file from the start; returns the run folder."""
    config = load_config(path)
    check_before_start(config)
    run = RunDir.create(config.output, dump_config(config))
    _execute(config, run, console, quiet, resume=False)
    return run.path


def resume(folder: Path, console: Console, quiet: bool = False) -> Path:
    """Goes on from the newest whole checkpoint of a run folder."""
    run = RunDir.open(folder)
    config = parse_config(run.read_config(), str(run.config_path))
    if run.read_summary() is not None:
        raise ConfigError(f"{folder}: this run is finished; see {run.report_path}")
    check_before_start(config)
    _execute(config, run, console, quiet, resume=True)
    return run.path


def check_before_start(config: RunConfig) -> None:
    """Fails on what would only show after the folder is made: a missing key, a missing policy."""
    from cotune.policies import policy_path

    policy_path(config.policy.path)
    if isinstance(config.llm, OpenAIOptions) and config.strategy.kind != "static":
        name = config.llm.api_key_env
        if name is not None and not os.environ.get(name, "").strip():
            raise ConfigError(
                f"llm.api_key_env: the environment variable {name} is not set; set it to the "
                "endpoint's key, or set api_key_env to null if it needs none"
            )
    if config.environment.kind == "search":
        from cotune.build import build_environment

        build_environment(config)


def evaluate(folder: Path, console: Console, split: str = "test") -> None:
    """Evaluates a finished run's best policy under its best and its initial instruction."""
    from cotune.engines.trl.run import evaluate_best

    run = RunDir.open(folder)
    if not (run.best_path / "best.json").is_file():
        raise ConfigError(
            f"{folder}: holds no best policy yet; finish it with: cotune resume {folder}"
        )
    config = parse_config(run.read_config(), str(run.config_path))
    _quiet_libraries(config)
    rows = evaluate_best(config, run, split)
    console.print(score_table(f"Exact match on the {split} split", rows))


def plan(path: Path, console: Console) -> None:
    """Prints what a run will spend at most, before anything is spent."""
    from rich.table import Table

    config = load_config(path)
    table = Table(
        title=f"{config.name}: what it spends at most",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("rollouts", justify="right")
    table.add_column("generated tokens", justify="right")
    per_rollout = config.limits.turns * config.limits.turn_tokens
    for purpose, count in planned_rollouts(config).items():
        table.add_row(purpose, f"{count:,}", f"{count * per_rollout:,}")
    console.print(table)
    calls = planned_calls(config)
    console.print(f"LLM: {describe_llm(config)}; at most {calls} calls" + _price(config, calls))
    console.print(
        f"Tokens are upper bounds: {config.limits.turns} turns of {config.limits.turn_tokens} each."
    )


def planned_rollouts(config: RunConfig) -> dict[str, int]:
    """The most rollouts of each purpose."""
    training, strategy = config.training, config.strategy
    found = {"train": training.steps * training.questions_per_step * training.group_size}
    if isinstance(strategy, InspoOptions) and strategy.verify:
        rows = strategy.verification_tasks * (strategy.candidates + strategy.parents)
        found["verify"] = evolutions(config) * strategy.verification_rounds * rows
    if training.rollout_budget is not None:
        found["train"] = min(found["train"], training.rollout_budget)
    environment = config.environment
    if environment.kind == "geo":
        during = 0
        if config.evaluation.every:
            during = math.ceil(training.steps / config.evaluation.every)
        found["evaluate"] = (2 + config.evaluation.before) * environment.test
        found["evaluate"] += during * environment.validation
    return found


def evolutions(config: RunConfig) -> int:
    """How often the strategy evolves: t mod K_e = 0 and t < T_e, t < T."""
    strategy = config.strategy
    if not isinstance(strategy, InspoOptions) or not strategy.evolve_every:
        return 0
    last = min(strategy.evolve_until, config.training.steps)
    return len(range(strategy.evolve_every, last, strategy.evolve_every))


def planned_calls(config: RunConfig) -> int:
    """The most LLM calls: the initial rewrites and every evolution's rounds."""
    strategy = config.strategy
    if not isinstance(strategy, InspoOptions):
        return 0
    return (1 + evolutions(config)) * strategy.verification_rounds


def _price(config: RunConfig, calls: int) -> str:
    if not isinstance(config.llm, OpenAIOptions):
        return ", free of charge"
    from cotune.llm.client import worst_case_price

    strategy = config.strategy
    assert isinstance(strategy, InspoOptions)
    # A token is rarely more than four characters; failures are shown whole or cut in the middle.
    shown = strategy.failures_per_reflection * config.limits.trajectory_tokens * 4
    price = worst_case_price(config.llm, shown + strategy.max_instruction_chars, calls)
    text = f", at most {price:.2f} at the prices of llm"
    if config.llm.budget is not None:
        text += f"; stopped at the budget of {config.llm.budget:.2f}"
    return text


def _execute(config: RunConfig, run: RunDir, console: Console, quiet: bool, resume: bool) -> None:
    _quiet_libraries(config)
    shown = Console(quiet=True) if quiet else console
    shown.print(
        f"[bold]{config.name}[/]: {config.strategy.kind} on {config.environment.kind}, seed "
        f"{config.seed}; proposals by {describe_llm(config)}; folder {run.path}"
    )
    from cotune.engines.trl.run import train as train_on_trl

    journal = RunJournal(run, shown, config.training.steps, config.logging.trajectories_every)
    started = time.monotonic()
    outcome = train_on_trl(config, run, journal, resume)
    if outcome is None:
        return  # another rank than the first
    with Ledger(run.ledger_path) as ledger:
        write_run_summary(config, run, outcome, ledger, time.monotonic() - started)
    journal.event("run_finished", outcome.steps)
    from cotune.experiments.report import write_report

    report = write_report(run.path)
    rows = [
        ("before", outcome.before),
        ("after", outcome.after),
        ("after, initial instruction", outcome.plain),
    ]
    shown.print(score_table("Held-out exact match", rows))
    shown.print(f"best instruction: {outcome.instruction}", markup=False, highlight=False)
    shown.print(f"report: {report}", markup=False, highlight=False)


def write_run_summary(
    config: RunConfig, run: RunDir, outcome: "Outcome", ledger: Ledger, seconds: float
) -> None:
    """summary.json of one run, with its one arm."""
    totals = ledger.totals()
    arm: dict[str, Any] = {
        **_figures("em", outcome.after),
        **_figures("em_before", outcome.before),
        **_figures("em_initial_instruction", outcome.plain),
        "em_interval": list(outcome.after.interval),
        "policy_rollouts": dict(totals.rollouts),
        "generated_tokens": sum(totals.generated_tokens.values()),
        "llm_calls": totals.llm_calls,
        "money": totals.money,
        "seconds": round(seconds, 1),
        "steps": outcome.steps,
        "best_instruction": outcome.instruction,
        "folder": ".",
    }
    run.write_summary(
        {
            "name": config.name,
            "strategy": config.strategy.kind,
            "seed": config.seed,
            "llm": describe_llm(config),
            "policy": config.policy.path,
            "arms": {config.strategy.kind: arm},
            "best_instruction": outcome.instruction,
        }
    )


def _figures(name: str, score: "Score | None") -> dict[str, Any]:
    if score is None:
        return {name: None}
    return {
        name: score.em,
        f"{name}_by_stratum": {k: em for k, (em, _n) in score.by_stratum.items()},
        f"{name}_n": score.n,
    }


def _quiet_libraries(config: RunConfig) -> None:
    """Set in our own process alone: no telemetry, and no network where nothing is to be fetched."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if config.policy.path.startswith("bundled:") or Path(config.policy.path).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def remove_run(folder: Path) -> None:
    """Deletes a run folder of ours and nothing else."""
    if RunDir.is_run(folder):
        shutil.rmtree(folder)
