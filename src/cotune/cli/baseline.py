"""`cotune baseline`: score a method that trains nothing."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import load_config
from cotune.utils.progress import begin


def baseline(
    name: str,
    path: Path,
    console: Console,
    quiet: bool = False,
    assignments: Sequence[str] = (),
    *,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
) -> Path:
    """Score a baseline that trains nothing on a run file's test split; return the run folder.

    Args:
        path: the run file; its strategy is not used.
        model, base_url, api_key_env: an endpoint to use instead of the run file's policy.
    """
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    shown = Console(quiet=True) if quiet else console
    with step_progress(shown):
        begin("reading the questions")
        from cotune.experiments.baselines.baseline_run import Endpoint, run_baseline

        return run_baseline(name, config, shown, Endpoint(model, base_url, api_key_env))
