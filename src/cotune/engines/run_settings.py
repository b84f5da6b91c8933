"""What a run has beside its trainer's arguments, from a run file or a script."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.config.build import describe_llm
from cotune.config.resuming import identity
from cotune.config.run_file import EvaluationConfig, RunConfig, dump_config
from cotune.run.costs import CostRow


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run has beside its trainer's arguments; a run file's fields, or their counterparts of a script.

    Attributes:
        folder: the run folder.
        record: plain data for its run.yaml.
        seed: the seed for the order of tasks and for all sampling.
        evaluation: when to evaluate on validation and test questions.
        identity: by field, the values that must be unchanged on a resume.
        rollout_budget: policy rollouts after which training ends; None is no limit.
        frozen: only roll out, make no update.
        has_batches: whether training batches are rolled out; if not, the run only evolves.
        rows_per_call: rollouts that are sampled together, per process.
        llm_name: names what proposes, for reports.
        rollouts_every: steps between files of training rollouts; 0 keeps those of evaluations only.
        console: shows progress; None, in a script, logs it to the logger "cotune".
        llm_checks: calls that checked the LLM before the run began, to be counted with its costs; None if
            it was not asked yet.
        working_folder: what relative paths start from; a tool may change the current folder.
    """

    folder: Path
    record: Mapping[str, Any]
    seed: int = 0
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    rollout_budget: int | None = None
    frozen: bool = False
    has_batches: bool = True
    rows_per_call: int = 512
    llm_name: str = "none"
    rollouts_every: int = 10
    console: Console | None = None
    llm_checks: tuple[CostRow, ...] | None = None
    working_folder: Path = field(default_factory=Path.cwd)


def settings_of(
    config: RunConfig, console: Console | None, llm_checks: tuple[CostRow, ...] = ()
) -> RunSettings:
    """Return the settings of a run file, or of what a script has in its place."""
    return RunSettings(
        folder=config.output.absolute(),
        record=dump_config(config),
        seed=config.seed,
        evaluation=config.evaluation,
        identity=identity(config),
        rollout_budget=config.training.rollout_budget,
        frozen=config.training.frozen,
        has_batches=config.has_batches,
        rows_per_call=config.training.rows_per_call,
        llm_name=describe_llm(config.proposer),
        rollouts_every=config.logging.trajectories_every,
        console=console,
        llm_checks=llm_checks,
    )
