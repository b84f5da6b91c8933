"""`cotune init`: a run file to begin with, commented, and the files that it names."""

import json
import re
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from cotune.errors import ConfigError
from cotune.policy.location import policy_path

KINDS = {
    "single-turn": "questions answered in one turn, scored by a reward function",
    "tools": "an agent that calls your Python functions",
    "search": "questions answered with a search engine over your own corpus",
}
"""The kinds of starters, each with a short description."""


_PATH = "  path: Qwen/Qwen3-0.6B "
_TEMPLATE_ARGS = re.compile(r"^  (template_args: [^#\n]*)#.*\n", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z~./][\w.~-]*[/:][\w./~:-]*[\w]")  # else YAML may read `off` as false


def write_starter(kind: str, folder: Path, policy: str | None = None) -> list[Path]:
    """Copies a starter's files into a folder, which is made if need be.

    Args:
        policy: the model that run.yaml is to name: a folder's path from here, which is written
            whole, or a name; None is the starter's own.

    Returns:
        What was written, run.yaml first.

    Raises:
        ConfigError: no such kind, a blank policy or a folder that is not there, or a file of that
            name is there; nothing is written then.
    """
    named = None if policy is None else _policy(policy)
    if kind not in KINDS:
        raise ConfigError(f"--kind is {kind!r}; expected one of {', '.join(KINDS)}")
    with as_file(files("cotune.cli") / "starters" / kind) as source:
        names = sorted(
            (path.name for path in source.iterdir() if path.is_file()),
            key=lambda name: (name != "run.yaml", name),
        )
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: is a file; give a folder")
        if taken := [name for name in names if (folder / name).exists()]:
            raise ConfigError(
                f"{folder / taken[0]}: is there already; give another folder, or move it away"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(source / name, folder / name)
    if named is not None:
        path = folder / "run.yaml"
        path.write_text(_with_policy(path.read_text(encoding="utf-8"), named), encoding="utf-8")
    return [folder / name for name in names]


def _policy(given: str) -> str:
    """A policy as a run file in another folder can name it."""
    if not given.strip():
        raise ConfigError("--policy is blank; expected a model's folder or its name on the hub")
    folder = Path(given).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    policy_path(given)  # complains of a path that is none
    return given


def _with_policy(text: str, policy: str) -> str:
    """A starter's run file with another policy; what only Qwen3's template takes is left out."""
    shown = policy if _PLAIN.fullmatch(policy) else json.dumps(policy, ensure_ascii=False)
    text = text.replace(_PATH, f"  path: {shown} ", 1)
    return text if "qwen3" in policy.lower() else _TEMPLATE_ARGS.sub("", text, count=1)
