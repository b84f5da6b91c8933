"""`cotune export` and `cotune push`: write a finished run's best policy to a folder or the hub."""

from pathlib import Path

from rich.console import Console

from cotune.cli.library_settings import allow_hub, quiet_libraries


def export(
    folder: Path, console: Console, format: str | None = None, output: Path | None = None
) -> Path:
    """Write a finished run's best policy to a folder; return the folder."""
    from cotune.export.export import export as export_best
    from cotune.export.export import open_finished

    quiet_libraries(open_finished(folder)[1])
    written = export_best(folder, format, output)
    console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)
    return written


def push(
    folder: Path, repo_id: str, console: Console, format: str | None = None, private: bool = False
) -> str:
    """Upload a finished run's best policy to a hub repository; return its URL."""
    allow_hub()
    from cotune.export.export import open_finished
    from cotune.export.push import push as push_best

    quiet_libraries(open_finished(folder)[1])
    address = push_best(folder, repo_id, format, private)
    console.print(f"pushed to {address}", markup=False, highlight=False, soft_wrap=True)
    return address
