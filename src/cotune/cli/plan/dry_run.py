"""`cotune train --dry-run`: run two scaled-down steps of a run file with a bundled policy."""

import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.plan.measured_plan import measured_steps
from cotune.cli.step_progress import step_progress
from cotune.config.build import build_environment, describe_llm
from cotune.config.run_file import (
    ASKS_A_MODEL,
    LLMConfig,
    RunConfig,
    TrainingConfig,
    load_config,
)
from cotune.data.corpus import corpus_rows
from cotune.data.search_questions import read_split
from cotune.engines.engine import Measured, engine_named
from cotune.environments.base import TaskEnvironment
from cotune.environments.math import (
    INITIAL_INSTRUCTION,
    MathEnvironment,
    MathOptions,
    hub_name,
    read_problems,
)
from cotune.environments.search import SearchEnvironment, SearchOptions, search_environment
from cotune.errors import ConfigError, Stopped
from cotune.llm.client import OpenAIOptions
from cotune.rewards.boxed import BoxedReward
from cotune.rewards.functions import load_reward
from cotune.run.run_dir import RunDir
from cotune.types import Limits, Task
from cotune.utils.progress import begin
from cotune.utils.stopping import stopped_by_sigterm
from cotune.worlds import geo, scaffold
from cotune.worlds.arithmetic import ArithmeticOptions
from cotune.worlds.geo import GeoOptions
from cotune.worlds.ladder import LadderOptions
from cotune.worlds.scaffold import ScaffoldOptions

_STEPS = 2
_PHASES: Mapping[str, tuple[str, ...]] = {
    "evolution": ("proposed", "verified", "accepted"),
    "hint_phase_ended": ("evaluations", "proposed", "accepted", "covering"),
    "gepa_phase_ended": ("evaluations", "proposed", "accepted"),
}
"""Events that end an evolution, and how the output describes them."""
_REASONS = ("proposal_failed", "instruction_rejected", "hint_rejected", "notice")

QUESTIONS = 8
"""Questions per step; the training data has as many, so that an epoch ends with the first step."""
_GROUP = 8  # maximum rollouts per question

WORLDS: Mapping[str, str] = {
    "geo": "geo",
    "search": "geo",
    "arithmetic": "arithmetic",
    "math": "arithmetic",
    "ladder": "ladder",
    "scaffold": "scaffold",
}
"""The bundled world for each kind of environment that has one."""
_World = GeoOptions | ArithmeticOptions | LadderOptions | ScaffoldOptions
_SIZES: Mapping[str, Any] = {"train": QUESTIONS, "validation": 2, "test": 2}
_SHORTEST = 4  # take the shortest from this many times the wanted questions
_CONNECT = 2.0  # seconds
# The bundled policies have context lengths of 1,024, 512 and 768 tokens.
_GEO = Limits(
    turns=4, turn_tokens=64, observation_tokens=120, trajectory_tokens=448, prompt_tokens=576
)
_ARITHMETIC = Limits(
    turns=1, turn_tokens=144, observation_tokens=1, trajectory_tokens=146, prompt_tokens=360
)
_SCAFFOLD = Limits(
    turns=5, turn_tokens=48, observation_tokens=80, trajectory_tokens=448, prompt_tokens=320
)
_ROOM = {"geo": _GEO, "arithmetic": _ARITHMETIC, "ladder": _ARITHMETIC, "scaffold": _SCAFFOLD}
_PLAIN = {"geo": geo.INITIAL_INSTRUCTION, "scaffold": scaffold.INITIAL_INSTRUCTION}
_INSTRUCTION = {
    "geo": 900,
    "arithmetic": 300,
    "ladder": 300,
    "scaffold": 500,
}  # characters that leave room for a question


def dry_run(
    path: Path, console: Console, assignments: Sequence[str] = (), ask_llm: bool = False
) -> None:
    """Run two scaled-down steps of a run file in a temporary folder and print what ran.

    The strategy, the reward, the protocol and the trainer's settings come from the run file. The
    policy is a bundled one. Missing data and unreachable servers are replaced by the bundled world
    of the same kind, and the LLM by the offline rules. Nothing is fetched, evaluated or left
    behind.

    Args:
        assignments: fields to set, as with --set.
        ask_llm: whether to call the run file's own LLM endpoint.

    Raises:
        ConfigError: the real run would fail, as far as this can show; or the run file cannot be
            scaled down to two such steps.
    """
    config = load_config(path, assignments=assignments)
    _check(config, ask_llm)
    RunDir.check_free(config.output)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    quiet_libraries(config)
    try:
        with stopped_by_sigterm(), tempfile.TemporaryDirectory(prefix="cotune-dry-run-") as folder:
            run = Path(folder) / "run"
            with step_progress(console):
                begin("reading the questions")
                environment, own, replaced = few_questions(config)
                begin("loading TRL")
                scaled, more = scaled_down(config, environment, own, ask_llm)
            console.print(f"{config.name}: dry run. Replaced:", markup=False)
            for line in [*replaced, *more]:
                console.print(f"  {line}", markup=False, highlight=False)
            measured = measured_steps(scaled, run, scaled.training.steps, console, environment)
            lines = _outcome(config, measured, RunDir.open(run))
    except KeyboardInterrupt:
        raise Stopped("stopped; nothing was kept") from None
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _check(config: RunConfig, ask_llm: bool) -> None:
    """Raise ConfigError for run files that cannot be scaled down."""
    kind, strategy = config.environment.kind, config.strategy.kind
    if kind not in WORLDS:
        raise ConfigError(
            f"--dry-run: environment.kind is {kind}; expected {', '.join(WORLDS)}; for your own "
            "environment, show rollouts with cotune try or run steps with cotune plan --steps 2"
        )
    if config.method.supervised or not config.has_batches:
        raise ConfigError(
            f"--dry-run runs steps of GRPO, but with strategy.kind {strategy} the run makes none; plan "
            "it with cotune plan"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--dry-run is for one process; start it without torchrun")
    if ask_llm and not isinstance(config.proposer, ASKS_A_MODEL):
        raise ConfigError("--ask-llm: the run file asks no LLM; remove it")
    for reward in config.rewards:
        load_reward(reward.function)
    if find_spec("trl") is None:
        raise ConfigError("--dry-run trains with TRL, which is not installed here: pip install trl")


def scaled_down(
    config: RunConfig, environment: TaskEnvironment, own: bool, ask_llm: bool
) -> tuple[RunConfig, list[str]]:
    """Return the run file of the two steps, and a line for each further replacement.

    Args:
        environment: its environment over a few questions.
        own: whether these are the run file's.
        ask_llm: whether its LLM endpoint is called.
    """
    world = WORLDS[config.environment.kind]
    bundled, replaced = f"bundled:{world}", list[str]()
    instruction, most = config.instruction, _INSTRUCTION[world]
    given = instruction.text or environment.initial_instruction
    if len(given) > most:
        plain = _PLAIN.get(world, INITIAL_INSTRUCTION)
        instruction = instruction.model_copy(update={"text": plain})
        replaced.append(
            f"instruction: a short one; the bundled policy has no room for {len(given)} characters"
        )
    if bundled != config.policy.path:
        replaced.append(f"policy: {bundled} for {config.policy.path}")
    strategy = config.method.scaled(config.strategy)
    training, without = scaled_training(config.training, getattr(strategy, "distil_steps", 0))
    if config.training.engine != training.engine:
        there = "" if find_spec(config.training.engine) else ", which is not installed here"
        replaced.append(f"engine: {training.engine} for {config.training.engine}{there}")
    if config.rewards and not own:
        names = ", ".join(reward.function for reward in config.rewards)
        replaced.append(f"rewards: without {names}; the bundled world scores by itself")
    if without:
        replaced.append(f"engine_args: without {', '.join(without)}")
    room = _ROOM[world]
    names = ("turns", "turn_tokens", "observation_tokens")
    least = {name: min(getattr(config.limits, name), getattr(room, name)) for name in names}
    limits = replace(room, **least)
    policy = {"path": bundled, "dtype": "float32", "chat_template": None}
    changes: dict[str, Any] = {
        "policy": config.policy.model_copy(update=policy),
        "environment": _world_options(config),
        "instruction": instruction,
        "rewards": config.rewards if own else (),
        "limits": limits,
        "strategy": strategy,
        "training": training,
    }
    if config.proposer is not None:
        replaced.append(_llm(config.proposer, ask_llm))
        if not ask_llm and isinstance(config.proposer, ASKS_A_MODEL):
            changes["llm"] = None
    replaced.append(
        f"sizes: {training.steps} steps of {training.questions_per_step} questions × {training.group_size}, "
        f"{limits.turns} turns of {limits.turn_tokens} tokens, prompts of {limits.prompt_tokens}"
        + ("; the evolution's numbers likewise" if config.method.evolves else "")
    )
    return config.model_copy(update=changes), replaced


def _llm(options: LLMConfig, ask_llm: bool) -> str:
    """Describe the LLM that proposes, and whether the real run would have its key."""
    if ask_llm:
        return f"llm: {describe_llm(options)}, called"
    if not isinstance(options, ASKS_A_MODEL):
        return f"llm: {describe_llm(options)}, as the run file has it"
    name = options.api_key_env if isinstance(options, OpenAIOptions) else None
    unset = name is not None and not os.environ.get(name)
    key = f"; {name}, which the real run needs, is not set" if unset else ""
    return f"llm: offline rules for {describe_llm(options)}{key}"


def _outcome(config: RunConfig, measured: Measured, run: RunDir) -> list[str]:
    """Return one line for each part that ran."""
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
    lines.append("its folder is deleted; start the real run without --dry-run")
    return lines


def evolves(config: RunConfig) -> bool:
    """Return whether a run evolves instructions or hints before its last step."""
    return config.method.cost(config.strategy, config.shape(QUESTIONS)).phases > 0


def scaled_training(
    training: TrainingConfig, last_stage: int
) -> tuple[TrainingConfig, Sequence[str]]:
    """Scale the run file's GRPO down to two steps of a few rollouts on TRL, and a last stage.

    Args:
        last_stage: further steps, in which nothing evolves.

    Returns:
        The fields, and the names of the `engine_args` that are left out: all but the loss's.

    Raises:
        ConfigError: an `engine_args` field that GRPOConfig does not have or that may not be set.
    """
    questions = min(training.questions_per_step, QUESTIONS)
    # Keep the file's group size unless it is large: the number of successes per question matters.
    group = min(training.group_size, _GROUP)
    rows = questions * group
    mini_batches = training.mini_batches if rows % training.mini_batches == 0 else 1
    args = engine_named(training.engine).dry_run_args(training.engine_args)
    changes: dict[str, Any] = {
        "engine": "trl",
        "steps": _STEPS + last_stage,
        "questions_per_step": questions,
        "group_size": group,
        "mini_batches": mini_batches,
        "micro_batch_size": rows // mini_batches,
        "rollout_budget": None,
        "rows_per_call": min(training.rows_per_call, rows),
        "save_every": 0,
        "single_gpu": True,
        "engine_args": args,
    }
    without = [name for name in training.engine_args if name not in args]
    return training.model_copy(update=changes), without


def few_questions(config: RunConfig) -> tuple[TaskEnvironment, bool, list[str]]:
    """Return the run file's environment over a few questions.

    Returns:
        The environment, whether the questions are the run file's, and a line if they are replaced.

    Raises:
        ConfigError: data of the run file exists but cannot be read.
    """
    options = config.environment
    missing = _missing(options) if isinstance(options, SearchOptions | MathOptions) else []
    if isinstance(options, SearchOptions | MathOptions) and not missing:
        environment = build_environment(options, None, config.instruction)
        assert isinstance(environment, TaskEnvironment)
        few = {split: _shortest(environment.tasks(split), n) for split, n in _SIZES.items()}
        said = f"data: {QUESTIONS} short questions of {options.train}"
        return environment.with_tasks(few), True, [said]
    world = build_environment(_world_options(config), None, config.instruction)
    assert isinstance(world, TaskEnvironment)
    if not isinstance(options, SearchOptions | MathOptions):
        return world, True, []
    _check_files(options)
    said = f"data: the bundled world {WORLDS[options.kind]}; not here: {', '.join(missing)}"
    tasks = {split: world.tasks(split) for split in _SIZES}
    if isinstance(world, SearchEnvironment) and isinstance(options, SearchOptions):
        environment = search_environment(options, tasks, world.retriever)
    else:
        assert isinstance(options, MathOptions)
        # In mathematics "12*13" would equal 156, the answer; here it is the question.
        reward = BoxedReward(options.seconds, plain_integers=True)
        environment = MathEnvironment(tasks, options.initial_instruction, reward)
    environment.prompt_format = config.instruction.format(environment.prompt_format)
    return environment, False, [said]


def _world_options(config: RunConfig) -> _World:
    """Return the options of the bundled world, with the run file's if it trains on that."""
    if isinstance(config.environment, _World):
        return replace(config.environment, **_SIZES)
    world = GeoOptions if WORLDS[config.environment.kind] == "geo" else ArithmeticOptions
    return world(**_SIZES)


def _check_files(options: SearchOptions | MathOptions) -> None:
    """Read the files that exist next to missing ones, and raise the ConfigError of a real run."""
    for split in _SIZES:
        path = getattr(options, split)
        if not isinstance(path, Path) or hub_name(path) is not None or not path.exists():
            continue
        if isinstance(options, MathOptions):
            read_problems(path, split, options)
        else:
            read_split(path, split)
    corpus = getattr(options, "corpus", None)
    if isinstance(corpus, Path) and corpus.exists():
        for _ in corpus_rows(corpus):  # not held in memory
            pass


def _missing(options: SearchOptions | MathOptions) -> list[str]:
    """List missing files, hub data (the hub is not contacted) and a server that does not answer."""
    # Named by their fields: a corpus may be None, and splits be numbers.
    named = {name: value for name, value in vars(options).items() if isinstance(value, Path)}
    absent = [
        str(path) for path in named.values() if hub_name(path) is not None or not path.exists()
    ]
    url = getattr(vars(options).get("retriever"), "url", None)
    if isinstance(url, str) and not _answers(url):
        absent.append(url)
    return absent


def _answers(url: str) -> bool:
    """Return whether a URL's host accepts connections."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _CONNECT):
            return True
    except OSError:
        return False


def _shortest(tasks: Sequence[Task], count: int) -> list[Task]:
    """Return short questions of mixed kinds, which leave the bundled policy room to answer."""
    ranked = sorted(tasks, key=lambda task: (len(task.question), task.id))
    every = _SHORTEST if len(ranked) >= count * _SHORTEST else 1
    return ranked[: count * every : every]
