"""Start or continue a run in its folder, the same for every engine: parts, lock, checkpoint, first events."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from cotune.config.build import build_llm, build_strategy, initial_instruction
from cotune.config.joint_method import JointMethod, OtherMethod
from cotune.config.resuming import changes
from cotune.config.run_checks import shape_notices
from cotune.config.run_file import RunConfig
from cotune.engines.evaluation import BestPolicy
from cotune.engines.joint import Joint, Parts, RunSettings, check_identity, settings_of, world
from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec
from cotune.policy.policy_files import damaged_weights
from cotune.protocols import Environment, Rewards
from cotune.run.checkpoints import GO_ON, complete_checkpoints, damaged_file, load_state
from cotune.run.events import RunDisplay
from cotune.run.json_files import run_locked
from cotune.run.record import Record
from cotune.run.run_dir import RunDir
from cotune.types import Limits

if TYPE_CHECKING:
    from cotune.engines.preflight import Preflight


def joint_method_of(config: RunConfig) -> JointMethod:
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
    """Return the parts of a run, which is silent and has no LLM until its folder is open."""
    strategy = build_strategy(
        method.options,
        environment,
        instruction=initial_instruction(method.instruction, environment),
        seed=settings.seed,
        limits=limits,
        tokens=codec,
    )
    return Parts(strategy, environment, codec, limits, settings, rewards)


def run_file_parts(checked: "Preflight", console: Console) -> Parts:
    """Return the parts of a run file's run, which has passed its checks."""
    config = checked.config
    settings = settings_of(config, console, tuple(checked.llm_calls))
    method = joint_method_of(config)
    parts = run_parts(
        settings, method, checked.environment, checked.codec, config.limits, checked.rewards
    )
    return replace(parts, context_tokens=checked.context_tokens)


@contextmanager
def opened_run(settings: RunSettings, total_steps: int, *, resume: bool) -> Generator[Record]:
    """Lock a run's folder while it trains; create it, or open it to resume; on every process.

    Ranks other than the first get a silent record.
    """
    folder = settings.folder
    new = not RunDir.is_run(folder)
    if new and world().rank == 0:
        RunDir.check_free(folder)  # before the lock is made in it
    with run_locked(folder):
        record = Record(folder, silent=True)
        if world().rank == 0:
            record = _open(settings, resume=resume and not new)
            record.listeners = [RunDisplay(settings.console, total_steps)]
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


def choose_checkpoint(complete: Sequence[Path], best: BestPolicy) -> Path | None:
    """Return the first of `complete`, which lists the newest first; None if it is empty.

    If there is one, it and the kept policy must be whole: `BestPolicy.check` finishes a replacement that a kill
    cut off, so call this while the run is locked.
    """
    if not complete:
        return None
    best.check()
    checkpoint = complete[0]
    if problem := damaged_weights(checkpoint) or damaged_file(checkpoint):
        raise ConfigError(f"{checkpoint}: {problem}; {GO_ON}")
    return checkpoint


def begin_run(
    record: Record,
    settings: RunSettings,
    best: BestPolicy,
    checkpoint: Path | None,
    check: Callable[[Path], None],
    notices: Iterable[str],
    *,
    resume: bool,
) -> Mapping[str, Any]:
    """Write the first events of a run, or prepare its folder to go on from a checkpoint.

    Args:
        best: the policy that an earlier attempt has kept; forgotten if the run starts from the beginning.
        checkpoint: what to go on from; None begins from the start.
        check: raises ConfigError if a checkpoint is not of this run; nothing is changed before it.
        notices: recorded if the run starts from the beginning.
        resume: whether the run has begun before.

    Returns:
        What changed in a run file's run.yaml; see `changes`.
    """
    if checkpoint is not None:
        check(checkpoint)
    else:
        if resume:
            record.cut_back(-1)
            text = "no complete checkpoint: the run starts from the beginning"
            record.event("notice", 0, text=text)
        best.forget()
        kind = settings.record["strategy"]["kind"]
        record.event("run_started", 0, config=settings.record["name"], strategy=kind)
        for text in notices:
            record.event("notice", 0, text=text)
    if resume and world().rank == 0:
        before = record.read_config()
        record.replace_config(settings.record)
        if "library" not in settings.record:  # a script shows its own changes
            return changes(before, settings.record)
    return {}


def begin_joint(
    joint: Joint, config: RunConfig, record: Record, best: BestPolicy, *, resume: bool
) -> Path | None:
    """Let a run file's run begin in its open folder: from the start, or from its newest complete checkpoint.

    Returns:
        The checkpoint, whose state the run has now; None at the start.
    """
    complete = complete_checkpoints(record.checkpoints_path)
    checkpoint = choose_checkpoint(complete, best) if resume else None

    def check(checkpoint: Path) -> None:
        check_identity(load_state(checkpoint), joint.identity)

    settings = joint.parts.settings
    environment = joint.parts.environment
    shape = config.shape(len(environment.tasks("train")))
    notices = shape_notices(config.strategy, shape)
    joint.changed = begin_run(record, settings, best, checkpoint, check, notices, resume=resume)
    joint.record_in(record, build_llm(config.proposer, config.seed, record, environment))
    if checkpoint is None:
        joint.attempt = record.begin_attempt(None)
    else:
        joint.resume(load_state(checkpoint))
    return checkpoint
