"""`cotune doctor`: show the installation, the machine, and what a run file builds or lacks here.

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

from cotune.config.library_settings import quiet_libraries
from cotune.config.run_file import load_config
from cotune.engines.engine import engine_named
from cotune.engines.preflight import OPTIONAL, Preflight
from cotune.errors import ConfigError, EngineError
from cotune.utils.packages import ENGINES, install_engine, installed, not_fitting
from cotune.utils.progress import begin, step_progress
from cotune.utils.text import hide_secrets, one_line


def show(run_file: Path | None, console: Console, assignments: Sequence[str] = ()) -> bool:
    """Print what is there and what is missing; return whether nothing is."""
    well = True
    with step_progress(console):
        for outcome in examine(run_file, assignments):
            missing = isinstance(outcome, Exception)
            well &= not missing
            mark = ("not ok ", "red") if missing else ("ok     ", "green")
            line = Text.assemble(mark, f"  {hide_secrets(one_line(str(outcome)))}")
            console.print(line, soft_wrap=True)
    return well


def examine(run_file: Path | None, assignments: Sequence[str] = ()) -> Iterator[str | Exception]:
    """Yield a line about each part of the installation, the machine and the run file, or its error."""
    yield from installation()
    yield from engines()
    yield from machine()
    if run_file is None:
        return
    try:
        config = load_config(run_file, assignments=assignments)
    except ConfigError as error:
        yield error
        return
    quiet_libraries(config)
    yield f"run file: {run_file} is valid"
    for _, outcome in Preflight(config, ask_llm=True).outcomes():
        if outcome is not None:
            yield outcome


def installation() -> Iterator[str | Exception]:
    """Show Python, cotune, and its packages."""
    yield f"python {platform.python_version()} on {platform.system()}; cotune {version('cotune')}"
    requirements = [
        requirement
        for requirement in map(Requirement, requires("cotune") or ())
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    yield from map(ConfigError, filter(None, map(not_fitting, requirements)))
    names = [*(requirement.name for requirement in requirements), *OPTIONAL]
    versions = [f"{name} {number}" for name in names if (number := installed(name))]
    yield f"packages: {', '.join(versions)}"


def engines() -> Iterator[str | Exception]:
    """Show which engines are installed and whether they work on this machine."""
    for name in ENGINES:
        if installed(name) is None:
            yield f"engine {name}: not installed ({install_engine(name)})"
            continue
        try:
            yield engine_named(name).installation()
        except (ConfigError, EngineError) as error:
            yield error
    if not any(map(installed, ENGINES)):
        yield ConfigError("engine: none is installed; pip install 'cotune[trl]'")


def machine() -> Iterator[str]:
    """Show the CPU cores, and each GPU with its memory."""
    yield f"CPU: {os.cpu_count()} cores"
    begin("looking for GPUs")
    try:
        import torch
    except ImportError:
        return  # reported with the packages
    if not torch.cuda.is_available():
        yield "GPU: none; training is on the CPU"
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_properties(index).name
        yield f"GPU {index}: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
