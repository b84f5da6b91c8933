"""`cotune train --dry-run`: two steps of a run file, scaled down, with the bundled policy in its place."""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from rich.console import Console

from cotune.cli.libraries import quiet_libraries
from cotune.cli.plan.dry_run_scaling import QUESTIONS, scaled_training
from cotune.cli.plan.dry_run_tasks import WORLDS, staged
from cotune.cli.plan.measured_plan import measured_steps
from cotune.config.build import describe_llm
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.engine import Measured
from cotune.errors import ConfigError, Stopped
from cotune.llm.client import OpenAIOptions
from cotune.rewards.functions import load_reward
from cotune.run.run_dir import RunDir

_STEPS = 2
_PHASES: Mapping[str, tuple[str, ...]] = {
    "evolution": ("proposed", "verified", "accepted"),
    "hint_phase_ended": ("evaluations", "proposed", "accepted", "covering"),
    "gepa_phase_ended": ("evaluations", "proposed", "accepted"),
}
"""Events that end an evolution, and what is said of them."""
_REASONS = ("proposal_failed", "instruction_rejected", "hint_rejected", "notice")


def dry_run(
    path: Path, console: Console, assignments: Sequence[str] = (), ask_llm: bool = False
) -> None:
    """Runs two steps of a run file, scaled down, in a temporary folder, and says what ran.

    The strategy, the reward, the protocol and the trainer's settings are the file's. The policy is a
    bundled one; data or a server that is not there gives way to the bundled world of the same kind,
    and the LLM to the offline rules. Nothing is fetched, evaluated or left behind.

    Args:
        path: the run file.
        console: where to show.
        assignments: fields that are set, as in --set.
        ask_llm: whether the file's own endpoint is asked for real.

    Raises:
        ConfigError: what the real run would end with, as far as it shows here; a run file of which
            two such steps cannot be made.
    """
    config = load_config(path, assignments=assignments)
    _check(config, ask_llm)
    RunDir.check_free(config.output)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet_libraries(config)
    try:
        with _stopped_by_sigterm(), tempfile.TemporaryDirectory(prefix="cotune-dry-run-") as folder:
            scaled, replaced = _scaled(config, Path(folder), ask_llm)
            console.print(
                f"{config.name}: dry run. In place of what the run file has:", markup=False
            )
            for line in replaced:
                console.print(f"  {line}", markup=False, highlight=False)
            run = Path(folder) / "run"
            measured = measured_steps(scaled, run, _STEPS, console)
            lines = _outcome(config, measured, RunDir.open(run))
    except KeyboardInterrupt:
        raise Stopped("stopped; nothing was kept") from None
    for line in lines:
        console.print(line, markup=False, highlight=False)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM as KeyboardInterrupt, so that the temporary folder goes as it does with Ctrl-C."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end the deleting
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(config: RunConfig, ask_llm: bool) -> None:
    """Raises ConfigError for run files that have no such steps."""
    kind, strategy = config.environment.kind, config.strategy.kind
    world = "arithmetic" if kind in ("math", "arithmetic") else "geo"
    if kind not in WORLDS:
        raise ConfigError(
            f"--dry-run: environment.kind is {kind}; expected {', '.join(WORLDS)}: of what is your own "
            "try some rollouts with cotune try, or run the first steps with cotune plan --steps 2"
        )
    if config.method.supervised or not config.has_batches:
        raise ConfigError(
            f"--dry-run runs steps of GRPO, but with strategy.kind {strategy} the run makes none; plan "
            "it with cotune plan"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--dry-run is for one process; start it without torchrun")
    if ask_llm:
        if not config.method.needs_llm or not isinstance(config.llm, OpenAIOptions):
            raise ConfigError("--ask-llm: the run file asks no endpoint; remove it")
    elif config.method.needs_llm and world not in config.method.offline_worlds:
        raise ConfigError(
            f"--dry-run: the offline rules propose nothing for strategy.kind {strategy} on "
            f"environment.kind {kind}; have "
            "llm asked for real by --ask-llm"
        )
    for reward in config.rewards:
        load_reward(reward.function)
    if find_spec("trl") is None:
        raise ConfigError("--dry-run trains with TRL, which is not installed here: pip install trl")


def _scaled(config: RunConfig, folder: Path, ask_llm: bool) -> tuple[RunConfig, list[str]]:
    """The run file of the two steps, and what of it is in whose place, a line each."""
    stage = staged(config, folder)
    bundled = f"bundled:{stage.policy}"
    replaced = [f"policy: {bundled} for {config.policy.path}"] * (bundled != config.policy.path)
    replaced += stage.replaced
    training, without = scaled_training(config.training)
    if config.training.engine != training.engine:
        there = "" if find_spec(config.training.engine) else ", which is not installed here"
        replaced.append(f"engine: {training.engine} for {config.training.engine}{there}")
    if config.rewards and not stage.own:
        names = ", ".join(reward.function for reward in config.rewards)
        replaced.append(f"rewards: without {names}; the bundled world scores by itself")
    if without:
        replaced.append(f"engine_args: without {', '.join(without)}")
    changes: dict[str, Any] = {
        "output": folder / "run",
        "policy": config.policy.model_copy(
            update={"path": bundled, "dtype": "float32", "chat_template": None}
        ),
        "environment": stage.environment,
        "instruction": stage.instruction,
        "rewards": config.rewards if stage.own else (),
        "limits": stage.limits,
        "strategy": config.method.scaled(config.strategy),
        "training": training,
    }
    if config.method.needs_llm:
        replaced.append(_llm(config, ask_llm))
        if not ask_llm:
            changes["llm"] = None
    limits = stage.limits
    replaced.append(
        f"sizes: {_STEPS} steps of {training.questions_per_step} questions × {training.group_size}, "
        f"{limits.turns} turns of {limits.turn_tokens} tokens, prompts of {limits.prompt_tokens}"
        + ("; the evolution's numbers likewise" if config.method.evolves else "")
    )
    # Not parsed again: the rules are held to the bundled worlds, of which this is one in disguise.
    return config.model_copy(update=changes), replaced


def _llm(config: RunConfig, ask_llm: bool) -> str:
    """Which LLM proposes, and whether the real run would have its key."""
    if ask_llm:
        return f"llm: {describe_llm(config)}, asked for real"
    options = config.llm
    if not isinstance(options, OpenAIOptions):
        return f"llm: {describe_llm(config)}, as the run file has it"
    name = options.api_key_env
    unset = name is not None and not os.environ.get(name)
    key = f"; {name}, which the real run needs, is not set" if unset else ""
    return f"llm: offline rules for {describe_llm(config)}{key}"


def _outcome(config: RunConfig, measured: Measured, run: RunDir) -> list[str]:
    """What ran, a line each."""
    totals = measured.totals
    steps = {int(row["step"]): float(row.get("reward_mean", 0)) for row in run.read_metrics()}
    rewards = ", ".join(f"{reward:.2f}" for _, reward in sorted(steps.items()))
    lines = [f"ran: {len(measured.steps)} steps; mean rewards {rewards}"]
    for purpose, count in totals.rollouts.items():
        if count:
            tokens = totals.generated_tokens[purpose]
            lines.append(f"ran: {count:,} rollouts to {purpose}, {tokens:,} generated tokens")
    if totals.llm_calls:
        lines.append(f"ran: {totals.llm_calls:,} LLM calls, {totals.llm_failed} failed")
    events = list(run.read_events())
    for event in events:
        if names := _PHASES.get(event["kind"]):
            said = ", ".join(f"{name} {event[name]}" for name in names if name in event)
            lines.append(f"ran: {event['kind']} before step {event['step']}: {said}")
    if evolves(config) and not any(event["kind"] in _PHASES for event in events):
        told = [str(e.get("reason") or e.get("text")) for e in events if e["kind"] in _REASONS]
        lines.append(f"no evolution ran: {told[-1] if told else 'none fell due'}")
    lines.append("the folder of it is deleted; the real run is cotune train without --dry-run")
    return lines


def evolves(config: RunConfig) -> bool:
    """Whether a run's strategy evolves instructions or hints before its last step."""
    return config.method.cost(config.strategy, config.shape(QUESTIONS)).phases > 0
