"""`cotune init`: write a commented starter run file and the files that it names."""

import json
import re
from importlib.resources import as_file, files
from pathlib import Path

from cotune.errors import ConfigError
from cotune.policy.policy_files import check_path
from cotune.run.json_files import check_folder, write_atomic

KINDS = {
    "single-turn": "questions answered in one turn, scored by a reward function",
    "tools": "an agent that calls your Python functions",
    "search": "questions answered with a search engine over your own corpus",
}
"""The kinds of starters, each with a short description."""
OFFLINE = "offline"
"""The starter that trains a bundled policy without a key or a network."""

_PATH = "  path: Qwen/Qwen3-0.6B "
_TEMPLATE_ARGS = re.compile(r"^  (template_args: [^#\n]*)#.*\n", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z~./][\w.~-]*[/:][\w./~:-]*[\w]")  # quote the rest: `off` is false


def write_starter(kind: str, folder: Path, policy: str | None = None) -> list[Path]:
    """Copy a starter's files into a folder, which is created if needed.

    Args:
        kind: one of `KINDS`, or `OFFLINE`, whose policy is bundled.
        policy: the model for run.yaml: a name, or a folder relative to the working directory,
            which is written as an absolute path; None keeps the starter's own.

    Returns:
        The written files, run.yaml first.

    Raises:
        ConfigError: unknown kind, blank policy, missing model folder, a file that already exists, or
            a folder that cannot be written; then no file is left.
    """
    named = None if policy is None else _policy(policy)
    if kind == OFFLINE and named is not None:
        raise ConfigError(
            "--policy was given with --offline, which trains a bundled policy; leave out one of them"
        )
    if kind not in (*KINDS, OFFLINE):
        raise ConfigError(f"--kind is {kind!r}; expected one of {', '.join(KINDS)}")
    with as_file(files("cotune.cli") / "starters" / kind) as source:
        names = sorted(
            (path.name for path in source.iterdir() if path.is_file()),
            key=lambda name: (name != "run.yaml", name),
        )
        check_folder(folder, "FOLDER")
        if taken := [name for name in names if (folder / name).exists()]:
            raise ConfigError(
                f"{folder / taken[0]}: exists already; give another folder, or move it away"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                text = (source / name).read_text(encoding="utf-8")
                if name == "run.yaml" and named is not None:
                    text = _with_policy(text, named)
                write_atomic(folder / name, text)
        except OSError as error:
            for name in names:
                (folder / name).unlink(missing_ok=True)
            raise ConfigError(
                f"FOLDER: {folder} cannot be written ({error.strerror or error}); choose another FOLDER"
            ) from error
    return [folder / name for name in names]


def _policy(given: str) -> str:
    """Return a policy in a form that works from a run file in another folder."""
    if not given.strip():
        raise ConfigError("--policy is blank; expected a model's folder, or a name on the hub")
    folder = Path(given).expanduser()
    if folder.is_dir():
        check_path(str(folder))
        return str(folder.resolve())
    check_path(given)
    return given


def _with_policy(text: str, policy: str) -> str:
    """Set the policy in a starter's run file; drop options that only Qwen3's template accepts."""
    shown = policy if _PLAIN.fullmatch(policy) else json.dumps(policy, ensure_ascii=False)
    text = text.replace(_PATH, f"  path: {shown} ", 1)
    return text if "qwen3" in policy.lower() else _TEMPLATE_ARGS.sub("", text, count=1)
