"""`cotune train --dry-run`: run two scaled-down steps of a run file with a bundled policy."""

import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.plan.measured_plan import measured_steps
from cotune.config.build import build_environment, describe_llm
from cotune.config.run_file import (
    Environment,
    LLMConfig,
    RunConfig,
    TrainingConfig,
    load_config,
)
from cotune.data.corpus import corpus_rows
from cotune.data.search_questions import read_split
from cotune.engines.engine import Measured, engine_named
from cotune.environments.environment_options import InstructionConfig
from cotune.environments.math import MathOptions, hub_name, read_problems
from cotune.environments.search import SearchOptions
from cotune.errors import ConfigError, Stopped
from cotune.llm.client import OpenAIOptions
from cotune.rewards.functions import load_reward
from cotune.run.run_dir import RunDir
from cotune.types import Limits, Task
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from cotune.worlds.geo import GeoOptions

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
}
"""The bundled world for each kind of environment that has one."""
_SIZES: Mapping[str, Any] = {"train": QUESTIONS, "validation": 2, "test": 2}
_SHORTEST = 4  # take the shortest from this many times the wanted questions
_CONNECT = 2.0  # seconds
# The bundled policies have context lengths of 1,024 and 512 tokens.
_GEO = Limits(
    turns=4, turn_tokens=64, observation_tokens=120, trajectory_tokens=448, prompt_tokens=576
)
_ARITHMETIC = Limits(
    turns=1, turn_tokens=144, observation_tokens=1, trajectory_tokens=146, prompt_tokens=360
)
_INSTRUCTION = {"geo": 900, "arithmetic": 300}  # characters that leave room for a question


def dry_run(
    path: Path, console: Console, assignments: Sequence[str] = (), ask_llm: bool = False
) -> None:
    """Run two scaled-down steps of a run file in a temporary folder and print what ran.

    The strategy, the reward, the protocol and the trainer's settings come from the run file. The
    policy is a bundled one. Missing data and unreachable servers are replaced by the bundled world
    of the same kind, and the LLM by the offline rules. Nothing is fetched, evaluated or left
    behind.

    Args:
        path: the run file.
        console: the console to print to.
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
    """Turn SIGTERM into KeyboardInterrupt, so that the temporary folder is deleted as on Ctrl-C."""
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(
            signal.SIGTERM, signal.SIG_IGN
        )  # a second one must not interrupt the deletion
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(config: RunConfig, ask_llm: bool) -> None:
    """Raise ConfigError for run files that cannot be scaled down."""
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
        if not isinstance(config.proposer, OpenAIOptions):
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
    """Return the scaled-down run file, and a line for each replacement."""
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
    if config.proposer is not None:
        replaced.append(_llm(config.proposer, ask_llm))
        if not ask_llm:
            changes["llm"] = None
    limits = stage.limits
    replaced.append(
        f"sizes: {_STEPS} steps of {training.questions_per_step} questions × {training.group_size}, "
        f"{limits.turns} turns of {limits.turn_tokens} tokens, prompts of {limits.prompt_tokens}"
        + ("; the evolution's numbers likewise" if config.method.evolves else "")
    )
    # Do not validate again: the rules for bundled worlds would reject this renamed one.
    return config.model_copy(update=changes), replaced


def _llm(options: LLMConfig, ask_llm: bool) -> str:
    """Describe the LLM that proposes, and whether the real run would have its key."""
    if ask_llm:
        return f"llm: {describe_llm(options)}, asked for real"
    if not isinstance(options, OpenAIOptions):
        return f"llm: {describe_llm(options)}, as the run file has it"
    name = options.api_key_env
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
    lines.append("the folder of it is deleted; the real run is cotune train without --dry-run")
    return lines


def evolves(config: RunConfig) -> bool:
    """Return whether a run evolves instructions or hints before its last step."""
    return config.method.cost(config.strategy, config.shape(QUESTIONS)).phases > 0


def scaled_training(training: TrainingConfig) -> tuple[TrainingConfig, Sequence[str]]:
    """Scale the run file's GRPO down to two steps of a few rollouts on TRL.

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
        "steps": 2,
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


@dataclass(frozen=True)
class Stage:
    """The setting in which the two steps run.

    Attributes:
        policy: the bundled policy.
        environment: the run file's environment, with questions and corpus in files of the folder.
        instruction: the run file's, or none if it is too long for that policy.
        limits: limits that fit that policy and stay within the run file's.
        own: whether the questions are the run file's.
        replaced: one line per replacement.
    """

    policy: str
    environment: Environment
    instruction: InstructionConfig
    limits: Limits
    own: bool
    replaced: Sequence[str]


def staged(config: RunConfig, folder: Path) -> Stage:
    """Build the setting of a dry run, and write its files to a folder.

    Raises:
        ConfigError: data of the run file exists but cannot be read.
    """
    world = WORLDS[config.environment.kind]
    environment, own, replaced = _environment(config, folder)
    instruction = config.instruction
    most = _INSTRUCTION[world]
    told = instruction.text or getattr(environment, "initial_instruction", "")
    if len(told) > most:
        instruction = instruction.model_copy(update={"text": _plain_instruction(world)})
        replaced.append(
            f"instruction: a short one; the bundled policy has no room for {len(told)} characters"
        )
    most_of = _GEO if world == "geo" else _ARITHMETIC
    limits = replace(
        most_of,
        turns=min(config.limits.turns, most_of.turns),
        turn_tokens=min(config.limits.turn_tokens, most_of.turn_tokens),
        observation_tokens=min(config.limits.observation_tokens, most_of.observation_tokens),
    )
    return Stage(world, environment, instruction, limits, own, replaced)


def _plain_instruction(world: str) -> str:
    from cotune.environments import math
    from cotune.worlds import geo

    return geo.INITIAL_INSTRUCTION if world == "geo" else math.INITIAL_INSTRUCTION


def _environment(config: RunConfig, folder: Path) -> tuple[Environment, bool, list[str]]:
    """Return the environment, whether its questions are the run file's, and the replacements."""
    options = config.environment
    if isinstance(options, GeoOptions | ArithmeticOptions):
        return replace(options, **_SIZES), True, []
    assert isinstance(options, SearchOptions | MathOptions)
    missing = _missing(options)
    if missing:
        _check_files(options)
        world = WORLDS[options.kind]
        why = f"data: the bundled world {world}; not here: {', '.join(missing)}"
        return _of_world(options, folder), False, [why]
    environment = build_environment(options, None, config.instruction)
    changes = {split: folder / f"{split}.jsonl" for split in _SIZES}
    for split, count in _SIZES.items():
        _write(changes[split], map(_row, _shortest(environment.tasks(split), count)))
    said = f"data: {QUESTIONS} short questions of {options.train}"
    return replace(options, **changes, **_whole(options)), True, [said]


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


def _of_world(options: SearchOptions | MathOptions, folder: Path) -> Environment:
    """Return the environment over the bundled world, with its questions and its corpus."""
    files = {split: folder / f"{split}.jsonl" for split in _SIZES}
    if isinstance(options, MathOptions):
        arithmetic = ArithmeticEnvironment(ArithmeticOptions(**_SIZES))
        for split, file in files.items():
            _write(file, map(_row, arithmetic.tasks(split)))
        # In mathematics "12*13" would equal 156, the answer; here it is the question.
        return replace(options, **files, **_whole(options), plain_integers=True)
    from cotune.worlds.geo import GeoEnvironment

    geo = GeoEnvironment(GeoOptions(**_SIZES))
    for split, file in files.items():
        _write(file, map(_row, geo.tasks(split)))
    corpus = folder / "corpus.jsonl"
    pairs = zip(geo.world.titles, geo.world.documents, strict=True)
    _write(corpus, ({"id": t, "contents": f'"{t}"\n{text}'} for t, text in pairs))
    server: dict[str, Any] = {"retriever": None} if "retriever" in vars(options) else {}
    return replace(options, **files, **_whole(options), corpus=corpus, **server)


def _whole(options: SearchOptions | MathOptions) -> dict[str, Any]:
    """Return the fields that make the environment read bundled files whole, with their columns."""
    if isinstance(options, MathOptions):
        names = ("question_column", "answer_column", "difficulty_at_least", "limit")
        return {**dict.fromkeys(names), "solution_column": "solution", "stratum_column": "stratum"}
    return {"sample": {}} if "sample" in vars(options) else {}


def _shortest(tasks: Sequence[Task], count: int) -> list[Task]:
    """Return short questions of mixed kinds, which leave the bundled policy room to answer."""
    ranked = sorted(tasks, key=lambda task: (len(task.question), task.id))
    return (
        ranked[: count * _SHORTEST : _SHORTEST]
        if len(ranked) >= count * _SHORTEST
        else ranked[:count]
    )


def _row(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "question": task.question,
        "answers": list(task.answers),
        "solution": task.solution,
        "stratum": task.stratum,
    }


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
