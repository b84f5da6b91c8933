"""`cotune export`: a run's best policy in its own folder, unchanged or merged into its base."""

import shutil
from contextlib import suppress
from pathlib import Path

from cotune.config.resuming import open_trained
from cotune.config.run_file import RunConfig
from cotune.errors import ConfigError
from cotune.export.complete import Format, complete_best, complete_serving, read_result, write_card
from cotune.policy.policy_files import check_whole, is_adapter, policy_path
from cotune.run.json_files import check_folder
from cotune.run.run_dir import RunDir

# Files of `best/` that merged weights replace.
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json")


def export(folder: Path, format: Format | None = None, output: Path | None = None) -> Path:
    """Write a finished run's best policy into a folder that can be served without changes; return the folder.

    Args:
        format: "full" or, for a run with `policy.lora`, "adapter" as `best/` is; "merged" adds an
            adapter to its base's weights. None is what `best/` is.
        output: the folder to write, which must be empty; `export` in the run folder by default.

    Raises:
        ConfigError: the run is not finished, the format does not fit it, or `output` is not
            empty or cannot be written. Nothing is written then.
    """
    run, config = open_finished(folder)
    kind = _choose_format(run, format)
    target = output or run.path / "export"
    check_folder(target, "--output")
    if target.exists() and any(target.iterdir()):
        raise ConfigError(
            f"--output: {target} exists and is not an empty folder; remove it, or name another"
        )
    staged = target / ".new"
    try:
        staged.mkdir(parents=True)
        _stage(config, run, kind, staged)
        for path in staged.iterdir():
            path.rename(target / path.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        with suppress(OSError):
            target.rmdir()  # if nothing was written
    return target


def open_finished(folder: Path) -> tuple[RunDir, RunConfig]:
    """Open the run folder of a finished `cotune train`; return it with its run file.

    Raises ConfigError: it is none, or the run is not finished.
    """
    run, config = open_trained(folder)
    read_result(run)
    return run, config


def _choose_format(run: RunDir, format: Format | None) -> Format:
    """Return the format asked for, or what `best/` is; ConfigError if it does not fit the run."""
    if is_adapter(run.best_path):
        if format == "full":
            raise ConfigError(
                f"--format is full, but {run.path} trained an adapter (policy.lora); expected adapter, or merged for "
                "whole weights"
            )
        return format or "adapter"
    if format == "adapter":
        raise ConfigError(
            f"--format is adapter, but {run.path} trained all weights (no policy.lora); expected full"
        )
    return "full"


def _stage(config: RunConfig, run: RunDir, kind: Format, staged: Path) -> None:
    """Write the export into an empty folder; complete `best/` first if a kill has left it incomplete."""
    for path in sorted(run.best_path.rglob("*")):
        # It could copy any file into an export.
        if path.is_symlink():
            raise ConfigError(
                f"{path}: is a symbolic link, which cotune never writes; replace it with the file"
            )
    check_whole(run.best_path)
    serving = complete_serving(run) or complete_best(config, run)
    skipped = shutil.ignore_patterns(".*", *(_WEIGHTS if kind == "merged" else ()))
    shutil.copytree(run.best_path, staged, ignore=skipped, dirs_exist_ok=True)
    if kind == "merged":
        from cotune.policy.local_policy import load

        base = policy_path(config.policy.path)
        model, _ = load(run.best_path, config.policy.dtype, base=base, merge=True)
        model.save_pretrained(staged)
        # That wrote the base's, which does not say how the policy was evaluated.
        shutil.copy(run.best_path / "generation_config.json", staged)
        write_card(staged, config, run, serving, kind)
