"""Start or continue a run in its folder, the same for every engine: parts, lock, checkpoint, first events."""

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from cotune.config.build import describe_llm, initial_instruction
from cotune.config.joint_method import JointMethod, OtherMethod
from cotune.config.resuming import changeable, identity
from cotune.config.run_file import EvaluationConfig, RunConfig, dump_config
from cotune.config.strategy import build_strategy
from cotune.engines.best_policy import BestPolicy
from cotune.engines.comm import world
from cotune.engines.joint import Parts
from cotune.errors import ConfigError
from cotune.experiments.report import ReportListener
from cotune.policy.codec import HFCodec
from cotune.protocols import Environment, Rewards
from cotune.run.console import ConsoleListener, LogListener
from cotune.run.costs import CostRow
from cotune.run.locks import run_locked
from cotune.run.manifest import Chosen, newest_undamaged
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Limits


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run has beside its trainer's arguments; a run file's fields, or their counterparts of a script.

    Attributes:
        folder: the run folder.
        record: plain data for its run.yaml.
        seed: the seed for the order of tasks and for all sampling.
        evaluation: when to evaluate on validation and test questions.
        identity: by field, the values that must be unchanged on a resume.
        changeable: by field, values that a resume may change, and then reports.
        rollout_budget: policy rollouts after which training ends; None is no limit.
        frozen: only roll out, make no update.
        has_batches: whether training batches are rolled out; if not, the run only evolves.
        rows_per_call: rollouts that are sampled together, per process.
        llm_name: names what proposes, for reports.
        rollouts_every: steps between files of training rollouts; 0 keeps those of evaluations only.
        console: shows progress; None, in a script, logs it to the logger "cotune".
        run_file: the run file, if there is one.
        llm_checks: calls that checked the LLM before the run began, to be counted with its costs; None if
            it was not asked yet.
        working_folder: what relative paths start from; a tool may change the current folder.
    """

    folder: Path
    record: Mapping[str, Any]
    seed: int = 0
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    identity: Mapping[str, str] = field(default_factory=dict[str, str])
    changeable: Mapping[str, str] = field(default_factory=dict[str, str])
    rollout_budget: int | None = None
    frozen: bool = False
    has_batches: bool = True
    rows_per_call: int = 512
    llm_name: str = "none"
    rollouts_every: int = 10
    console: Console | None = None
    run_file: RunConfig | None = None
    llm_checks: tuple[CostRow, ...] | None = None
    working_folder: Path = field(default_factory=Path.cwd)


def settings_of(
    config: RunConfig, console: Console | None, llm_checks: tuple[CostRow, ...] = ()
) -> RunSettings:
    """Return the settings of a run file."""
    return RunSettings(
        folder=config.output.absolute(),
        record=dump_config(config),
        seed=config.seed,
        evaluation=config.evaluation,
        identity=identity(config),
        changeable=changeable(config),
        rollout_budget=config.training.rollout_budget,
        frozen=config.training.frozen,
        has_batches=config.has_batches,
        rows_per_call=config.training.rows_per_call,
        llm_name=describe_llm(config.proposer),
        rollouts_every=config.logging.trajectories_every,
        console=console,
        run_file=config,
        llm_checks=llm_checks,
    )


def method_of(config: RunConfig) -> JointMethod:
    """Return the method of a run file."""
    return OtherMethod(
        strategy=config.strategy,
        llm=cast(Any, config.proposer),  # options of an LLM, or an object's
        instruction=config.instruction.text,
    )


def run_parts(
    settings: RunSettings,
    method: JointMethod,
    environment: Environment,
    codec: HFCodec,
    limits: Limits,
    rewards: Rewards | None = None,
) -> Parts:
    """Return the parts of a run, which is silent and has no LLM until its folder is open.

    Args:
        settings: what the run has beside its trainer's arguments.
        method: builds the strategy.
        environment, codec, limits, rewards: what rollouts are made with.
    """
    return Parts(
        strategy=build_strategy(
            method.options,
            environment,
            instruction=initial_instruction(method.instruction, environment),
            seed=settings.seed,
            limits=limits,
            tokens=codec,
        ),
        environment=environment,
        limits=limits,
        seed=settings.seed,
        rewards=rewards,
        rows_per_call=settings.rows_per_call,
        identity=settings.identity,
        rollout_budget=settings.rollout_budget,
        frozen=settings.frozen,
        changeable=settings.changeable,
    )


@contextmanager
def opened_run(settings: RunSettings, total_steps: int, *, resume: bool) -> Generator[Record]:
    """Lock a run's folder while it trains; create it, or open it to resume; on every process.

    Ranks other than the first get a silent record.

    Args:
        total_steps: the most steps the run can take.
        resume: whether the run is to go on, from a checkpoint or from its start.

    Raises:
        ConfigError: the folder holds another run, cannot be written, or is trained by another process.
    """
    folder = settings.folder
    new = not RunDir.is_run(folder)
    if new and world().rank == 0:
        RunDir.check_free(folder)  # before the lock is made in it
    with run_locked(folder):
        record = Record(folder, silent=True)
        if world().rank == 0:
            record = _open(settings, resume=resume and not new)
            console = settings.console
            log = ConsoleListener(console, total_steps) if console else LogListener()
            record.listeners = [log, ReportListener(folder)]
            record.rollouts_every = settings.rollouts_every
            record.total_steps = total_steps
            record.charge_check(settings.llm_checks or ())
        world().broadcast(None)
        yield record


def _open(settings: RunSettings, *, resume: bool) -> Record:
    folder = settings.folder
    if resume:
        return Record.open(folder)
    if not RunDir.is_run(folder):
        return Record.create(folder, settings.record)
    # A run that was stopped before the end of its first step may begin again.
    record = Record.open(folder)
    if _has_trained(record):
        raise ConfigError(
            f"{folder}: holds an earlier run; resume it with trainer.train(resume_from_checkpoint=True) if it "
            "has a checkpoint, or set another output_dir in GRPOConfig"
        )
    record.cut_back(-1)  # keeps the LLM's replies
    record.replace_config(settings.record)
    return record


def _has_trained(record: Record) -> bool:
    """Return whether a run came beyond its first step. One that logs rarely has no metrics by then."""
    return (
        bool(record.read_metrics())
        or any(event["kind"] in ("saved", "run_finished") for event in record.read_events())
        or any(row.kind == "train" and row.step > 1 for row in record.cost_rows)
    )


def choose_checkpoint(complete: Iterable[Path], best: BestPolicy) -> Chosen:
    """Return the newest undamaged checkpoint to resume from.

    Call it while the run is locked: it finishes a replacement of the kept policy that a kill cut off.

    Args:
        complete: folders of checkpoints whose writing had ended, newest first.
        best: the policy that the run has kept, which must be whole to go on from a checkpoint.

    Raises:
        ConfigError: all checkpoints or the kept policy is damaged.
    """
    chosen = newest_undamaged(complete)
    if chosen.path is not None:
        best.check()
    return chosen


def begin_run(
    record: Record,
    settings: RunSettings,
    best: BestPolicy,
    chosen: Chosen | None,
    check: Callable[[Path], None],
) -> None:
    """Write the first events of a run, or prepare its folder to go on from a checkpoint.

    Args:
        best: the policy that an earlier attempt has kept; forgotten if the run starts from the beginning.
        chosen: what to resume from; None for a new run.
        check: raises ConfigError if a checkpoint is not of this run. Nothing is changed before it.
    """
    checkpoint = None if chosen is None else chosen.path
    if checkpoint is not None:
        check(checkpoint)
    else:
        if chosen is not None:
            record.cut_back(-1)
            text = "no complete checkpoint: the run starts from the beginning"
            record.event("notice", 0, text=text)
        best.forget()
        kind = settings.record["strategy"]["kind"]
        record.event("run_started", 0, config=settings.record["name"], strategy=kind)
    if chosen is not None and world().rank == 0:
        chosen.set_aside()
        record.replace_config(settings.record)
