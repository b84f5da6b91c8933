"""What a dry run is asked: the run file's own questions, or those of the bundled world of their kind."""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cotune.cli.plan.dry_run_scaling import QUESTIONS
from cotune.config.build import build_environment
from cotune.config.run_file import Environment, RunConfig
from cotune.data.corpus import corpus_rows
from cotune.data.search_questions import read_split
from cotune.environments.environment_options import InstructionConfig
from cotune.environments.math import MathOptions, hub_name, read_problems
from cotune.environments.search import SearchOptions
from cotune.types import Limits, Task
from cotune.worlds.arithmetic import ArithmeticEnvironment, ArithmeticOptions
from cotune.worlds.geo import GeoOptions

WORLDS: Mapping[str, str] = {
    "geo": "geo",
    "search": "geo",
    "arithmetic": "arithmetic",
    "math": "arithmetic",
}
"""The bundled world of each kind of environment that has one."""
_SIZES: Mapping[str, Any] = {"train": QUESTIONS, "validation": 2, "test": 2}
_SHORTEST = 4  # of so many times the questions that are wanted, the shortest are taken
_CONNECT = 2.0  # seconds
# What the bundled policies can attend to is 1,024 and 512 tokens.
_GEO = Limits(
    turns=4, turn_tokens=64, observation_tokens=120, trajectory_tokens=448, prompt_tokens=576
)
_ARITHMETIC = Limits(
    turns=1, turn_tokens=144, observation_tokens=1, trajectory_tokens=146, prompt_tokens=360
)
_INSTRUCTION = {"geo": 900, "arithmetic": 300}  # characters that leave room for a question


@dataclass(frozen=True)
class Stage:
    """Where the two steps take place.

    Attributes:
        policy: the bundled one.
        environment: the run file's, its questions and corpus in files of the folder.
        instruction: the run file's, or none where it is too long for that policy.
        limits: what fits that policy, and is within the run file's.
        own: whether the questions are the run file's.
        replaced: what is in whose place, a line each.
    """

    policy: str
    environment: Environment
    instruction: InstructionConfig
    limits: Limits
    own: bool
    replaced: Sequence[str]


def staged(config: RunConfig, folder: Path) -> Stage:
    """The stage of a dry run; what it needs is written into a folder.

    Raises:
        ConfigError: data of the run file that are there and cannot be read.
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
    """The environment, whether its questions are the run file's, and what was replaced."""
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
    environment = build_environment(config)
    changes = {split: folder / f"{split}.jsonl" for split in _SIZES}
    for split, count in _SIZES.items():
        _write(changes[split], map(_row, _shortest(environment.tasks(split), count)))
    said = f"data: {QUESTIONS} short questions of {options.train}"
    return replace(options, **changes, **_whole(options)), True, [said]


def _check_files(options: SearchOptions | MathOptions) -> None:
    """Reads what is there beside what is missing, as the run would; raises its ConfigError."""
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
    """Files that are not there, data of the hub, which is not asked, and a server that does not answer."""
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
    """Whether something takes connections where a URL points to."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _CONNECT):
            return True
    except OSError:
        return False


def _of_world(options: SearchOptions | MathOptions, folder: Path) -> Environment:
    """The same environment over the bundled world: its questions, and its documents as the corpus."""
    files = {split: folder / f"{split}.jsonl" for split in _SIZES}
    if isinstance(options, MathOptions):
        arithmetic = ArithmeticEnvironment(ArithmeticOptions(**_SIZES))
        for split, file in files.items():
            _write(file, map(_row, arithmetic.tasks(split)))
        # As mathematics "12*13" equals 156; there that is the question.
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
    """Fields that say how our own files are read: whole, and in our own columns."""
    if isinstance(options, MathOptions):
        names = ("question_column", "answer_column", "difficulty_at_least", "limit")
        return {**dict.fromkeys(names), "solution_column": "solution", "stratum_column": "stratum"}
    return {"sample": {}} if "sample" in vars(options) else {}


def _shortest(tasks: Sequence[Task], count: int) -> list[Task]:
    """Questions that leave the bundled policy room, not all of one kind."""
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
