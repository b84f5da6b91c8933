"""`cotune doctor`: report the installation, the machine, and anything a run file is missing.

Shows only the names of environment variables, never their values.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.text import Text

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import load_config
from cotune.engines.engine import engine_named
from cotune.engines.preflight import OPTIONAL, Finding, Preflight, required, wrong
from cotune.errors import ConfigError
from cotune.utils.importing import uncollected
from cotune.utils.packages import ENGINES, installed
from cotune.utils.progress import begin
from cotune.utils.text import hide_secrets, size


def show(
    run_file: Path | None, console: Console, assignments: Sequence[str] = (), verbose: bool = False
) -> bool:
    """Print problems, key facts, and the number of other checks; return whether everything passed.

    Args:
        assignments: fields to set, as with --set.
        verbose: list all checks.
    """
    well, more = True, 0
    with step_progress(console), uncollected():
        for finding in examine(run_file, assignments):
            well &= finding.ok
            if finding.ok and not (finding.key or verbose):
                more += 1
                continue
            mark = ("ok     ", "green") if finding.ok else ("not ok ", "red")
            line = Text.assemble(mark, f"  {hide_secrets(finding.text)}")
            console.print(line, soft_wrap=True)
    if more:
        line = Text.assemble(("ok     ", "green"), f"  {more} more checks; --verbose lists them")
        console.print(line, soft_wrap=True)
    return well


def examine(run_file: Path | None, assignments: Sequence[str] = ()) -> Iterator[Finding]:
    """Yield findings about the installation, the machine, and the run file if one is given.

    Raises:
        ConfigError: there is no such run file.
    """
    if run_file is not None and not run_file.exists():
        load_config(run_file)  # raises
    yield from installation()
    yield from machine()
    if run_file is None:
        return
    try:
        config = load_config(run_file, assignments=assignments)
    except ConfigError as error:
        yield wrong("run file", error)
        return
    quiet_libraries(config)
    yield Finding(True, f"run file: {run_file} is valid", key=True)
    yield from Preflight(config, patient=False, ask_llm=True).findings()


# ---- the installation


def installation() -> Iterator[Finding]:
    """Report on Python, cotune, its required and optional packages, and the engines."""
    yield Finding(True, f"python {platform.python_version()} on {platform.system()}")
    yield Finding(True, f"cotune {version('cotune')}", key=True)
    for text in requires("cotune") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield required(requirement)
    for name, use in OPTIONAL.items():
        found = installed(name)
        yield Finding(True, f"{name} {found or 'is not installed'} (optional: {use})")
    yield from engines()


def engines() -> list[Finding]:
    """Report which engines are installed and whether they work on this machine."""
    if not any(map(installed, ENGINES)):
        return [Finding(False, "engine: none is installed", "pip install 'cotune[trl]'")]
    absent = "not installed (cotune[{}], in another environment)"
    missing = [name for name in ENGINES if installed(name) is None]
    findings = [
        Finding(True, f"engine {name}: {absent.format(name)}", key=True) for name in missing
    ]
    for name in ENGINES:
        if name not in missing:
            findings += engine_named(name).installation()
    return findings


# ---- the machine


def machine() -> list[Finding]:
    """Report the CPU cores and memory, and each GPU with its memory."""
    memory = _memory()
    more = f", {size(memory)} of memory" if memory is not None else ""
    return [Finding(True, f"CPU: {_cores()} cores{more}", key=True), *_gpus()]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _memory() -> int | None:
    """Return the memory in bytes of the machine, or of its container if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total


def _gpus() -> list[Finding]:
    begin("looking for GPUs")
    try:
        import torch
    except ImportError:
        return []  # reported with the packages
    if not torch.cuda.is_available():
        return [Finding(True, "GPU: none; training is on the CPU", key=True)]
    found: list[Finding] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0]
        found.append(
            Finding(
                True,
                f"GPU {index}: {properties.name}, {free / 2**30:.1f} of "
                f"{properties.total_memory / 2**30:.1f} GiB free",
                key=True,
            )
        )
    return found
