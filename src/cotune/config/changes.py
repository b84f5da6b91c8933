"""What may be another in the run file when a run is resumed, what may not, and what did change."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.errors import ConfigError

_FIXED = (
    "policy", "dataset", "environment", "rewards", "instruction", "limits", "strategy", "seed",
)  # fmt: skip
# A step would be another one: which questions it takes, and how many optimizer steps it makes.
_FIXED_IN_TRAINING = ("engine", "questions_per_step", "group_size", "mini_batches", "frozen")
_FREE = "name, threads, environment.retriever, llm, evaluation, logging and training"
# May hold a key or a token: kept as a hash, and only their names are said.
_SILENT = ("llm", "training.engine_args")


def identity(config: RunConfig) -> dict[str, str]:
    """The parts of a run file that a resume must find as they were, by field, as JSON."""
    plain = dump_config(config)
    if server := plain["environment"].get("retriever"):
        # The address of a server and how long it is waited for; what it answers cannot be known.
        plain["environment"]["retriever"] = {"kind": server["kind"]}
    fixed = {field: plain[field] for field in _FIXED}
    fixed |= {f"training.{name}": plain["training"][name] for name in _FIXED_IN_TRAINING}
    return {field: json.dumps(value, sort_keys=True) for field, value in fixed.items()}


def renewed(saved: Mapping[str, str], config: RunConfig) -> dict[str, str]:
    """What an older version saved as `identity`, as this one would have: new fields at their defaults.

    Args:
        saved: by field, as JSON; what is no field of the run file stays as it is.
        config: the run file that is resumed.
    """
    plain = dump_config(config)
    server = plain["environment"].get("retriever")
    plain |= {field: json.loads(text) for field, text in saved.items() if field in plain}
    if server and plain["environment"].get("retriever"):
        plain["environment"]["retriever"] = server  # of which only the kind was saved
    try:
        known = identity(parse_config(plain, "the saved run"))
    except ConfigError:
        return dict(saved)  # of another kind; the comparison says which field differs
    return {field: known[field] if field in plain else text for field, text in saved.items()}


def changeable(config: RunConfig) -> dict[str, str]:
    """The fields of a run file that a resume may find changed, as JSON; hashes of silent ones."""
    dumped = dump_config(config)
    plain = {name: part for name, part in dumped.items() if name not in _FIXED}
    if server := dumped["environment"].get("retriever"):
        plain["environment"] = {"retriever": server}
    return {
        field: hashlib.sha256(value.encode()).hexdigest() if _is_silent(field) else value
        for field, value in _leaves("", plain)
    }


def check_resumable(was: RunConfig, now: RunConfig, source: str) -> None:
    """Raises ConfigError where a run that began as `was` cannot go on as `now`.

    Args:
        was: the run file that the folder holds.
        now: the same with some fields changed.
        source: where the changes were given; named in the error.
    """
    before, after = identity(was), identity(now)
    for field, value in before.items():
        if after[field] != value:
            raise ConfigError(
                f"{source}: {field} is fixed once a run has begun; on resume {_FREE} can change "
                f"(there not {', '.join(_FIXED_IN_TRAINING)}); leave it, or start a new run in "
                "another folder"
            )
    if was.output != now.output:
        raise ConfigError(
            f"{source}: output is fixed once a run has begun; leave it, or move the whole folder and "
            "resume it where it is then"
        )


def changes(
    was: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, tuple[object, object] | None]:
    """By field that differs: what it was and what it is, null where there is none.

    None in place of both for what stands under `llm` or `training.engine_args`.
    """
    fields = sorted(field for field in was.keys() | now.keys() if was.get(field) != now.get(field))
    return {
        field: None if _is_silent(field) else (_value(was, field), _value(now, field))
        for field in fields
    }


def _is_silent(field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in _SILENT)


def _value(fields: Mapping[str, str], field: str) -> object:
    return json.loads(fields.get(field, "null"))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """(dotted field, JSON) of all that is no mapping."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), part)
    else:
        yield name, json.dumps(value, sort_keys=True)
