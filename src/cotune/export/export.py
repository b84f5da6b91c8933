"""`cotune export`: a run's best policy in a folder of its own, as it is or merged into its base."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from cotune.config.run_file import RunConfig, parse_config
from cotune.errors import ConfigError
from cotune.export.complete import completed, finished, write_card, write_generation_config
from cotune.export.serving import FILE, Format, is_adapter
from cotune.policy.paths import policy_path
from cotune.run.run_dir import RunDir

FORMATS = get_args(Format)
# What `best/` has besides weights and their configuration: of use with merged weights, too.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json")


def export(folder: Path, format: str | None = None, output: Path | None = None) -> Path:
    """Writes a finished run's best policy into a folder that serves as it is.

    Args:
        folder: the run folder.
        format: "full" or, of a run with `policy.lora`, "adapter" as `best/` is; "merged" has an
            adapter added to its base's weights. None is what `best/` is.
        output: where to; `export` in the run folder by default. It must not hold anything.

    Returns:
        The folder written.

    Raises:
        ConfigError: the run is not finished, the format does not fit it, or `output` holds
            something. Nothing is written then.
    """
    run, config = open_finished(folder)
    kind = checked_format(run, format)
    target = output or run.path / "export"
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(
            f"--output: {target} exists and is not an empty folder; remove it, or name another"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        stage(config, run, kind, staged)
        if target.exists():
            target.rmdir()
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def open_finished(folder: Path) -> tuple[RunDir, RunConfig]:
    """A finished run's folder and run file.

    Raises:
        ConfigError: no run folder, a program's own trainer's, or a run that is not finished.
    """
    run = RunDir.open(folder)
    raw = run.read_config()
    if "library" in raw:
        raise ConfigError(
            f"{folder}: belongs to a program with a GRPOTrainer of its own, which keeps the weights; "
            "save them there with trainer.save_model()"
        )
    config = parse_config(raw, str(run.config_path))
    finished(run)
    return run, config


def checked_format(run: RunDir, format: str | None) -> Format:
    """The format asked for, or what `best/` is. Raises ConfigError where it does not fit the run."""
    if format is not None and format not in FORMATS:
        raise ConfigError(f"--format is {format!r}; expected one of {', '.join(FORMATS)}")
    adapter = is_adapter(run.best_path)
    if format == "adapter" and not adapter:
        raise ConfigError(
            f"--format is adapter, but {run.path} trained all weights (no policy.lora); expected full"
        )
    if format == "full" and adapter:
        raise ConfigError(
            f"--format is full, but {run.path} trained an adapter (policy.lora); expected adapter, or "
            "merged for whole weights"
        )
    if format == "merged" and adapter:
        return "merged"
    return "adapter" if adapter else "full"


def stage(
    config: RunConfig,
    run: RunDir,
    kind: Format,
    staged: Path,
    where: str = "",
    copy: Callable[[str, str], object] = shutil.copy2,
) -> None:
    """Writes the export into a folder that is not there yet.

    Args:
        where: the repository that it is going to; "" for a folder.
        copy: how a file is taken over.
    """
    serving = completed(config, run)
    skipped = shutil.ignore_patterns(".*", *(_WEIGHTS if kind == "merged" else ()))
    shutil.copytree(run.best_path, staged, ignore=skipped, copy_function=copy)
    if kind == "merged":
        from cotune.policy.local_policy import load

        model, _ = load(
            run.best_path,
            config.policy.dtype,
            base=policy_path(config.policy.path),
            merge=True,
        )
        (staged / "generation_config.json").unlink()
        model.save_pretrained(staged)
        write_generation_config(staged, config.limits)
    if kind != ("adapter" if is_adapter(run.best_path) else "full") or where:
        write_card(staged, config, run, serving, kind, where)
    assert (staged / FILE).is_file()
