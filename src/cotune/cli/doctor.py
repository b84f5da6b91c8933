"""`cotune doctor`: what is installed, what the machine has, and what a run file still lacks.

Every function returns findings and raises nothing that a user can mend. No value of an environment
variable is ever told, only names.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

from cotune.cli.needs import GIB, OPTIONAL, Finding, of_run_file, one_line, wrong
from cotune.config.run_file import load_config
from cotune.engines.verl.verl_engine import together
from cotune.errors import ConfigError, EngineError
from cotune.utils.packages import ENGINES, installed


def examine(run_file: Path | None, assignments: Sequence[str] = ()) -> list[Finding]:
    """All findings: of the installation and the machine, and of a run file if one is given."""
    findings = [*installation(), *machine()]
    if run_file is None:
        return findings
    try:
        config = load_config(run_file, assignments=assignments)
    except ConfigError as error:
        return [*findings, wrong("run file", error)]
    return [*findings, Finding(True, f"run file: {run_file} is valid"), *of_run_file(config)]


# ---- the installation


def installation() -> list[Finding]:
    """Python, cotune, what it requires, what it can use, and which engine there is."""
    findings = [
        Finding(True, f"python {platform.python_version()} on {platform.system()}"),
        Finding(True, f"cotune {version('cotune')}"),
    ]
    for text in requires("cotune") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            findings.append(required(requirement))
    findings += [
        Finding(True, f"{name} {found or 'is not installed'} (optional: {use})")
        for name, use in OPTIONAL.items()
        for found in [installed(name)]
    ]
    return [*findings, *engines()]


def engines() -> list[Finding]:
    """Which engines are installed, and whether they work here."""
    found = {name: installed(name) for name in ENGINES}
    if not any(found.values()):
        return [Finding(False, "engine: none is installed", "pip install 'cotune[trl]'")]
    findings = [
        Finding(True, f"engine {name}: not installed (cotune[{name}], in another environment)")
        for name in ENGINES
        if found[name] is None
    ]
    if found["trl"] is not None:
        findings.append(trl_engine())
    if found["verl"] is not None:
        findings += verl_engine(found["verl"])
    return findings


def verl_engine(found: str) -> list[Finding]:
    """Whether what cotune's extra for veRL requires is there, and no TRL that breaks it."""
    wrong_ones = [
        Finding(False, f"engine verl: {finding.what}", finding.mend)
        for text in requires("cotune") or ()
        for requirement in [Requirement(text)]
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": "verl"})
        and not requirement.marker.evaluate({"extra": ""})
        for finding in [required(requirement)]
        if not finding.ok
    ]
    if clash := together():
        wrong_ones.append(Finding(False, f"engine verl: {clash}", "make an environment for each"))
    return wrong_ones or [Finding(True, f"engine verl: verl {found}, and what it needs")]


def required(requirement: Requirement) -> Finding:
    """Whether a package is installed in the range that it is required in."""
    found = installed(requirement.name)
    wanted = f"{requirement.name}{requirement.specifier}"
    if found is None:
        return Finding(False, f"{requirement.name} is not installed", f"pip install '{wanted}'")
    if not requirement.specifier.contains(found, prereleases=True):
        return Finding(
            False,
            f"{requirement.name} {found} is not in {requirement.specifier}",
            f"pip install '{wanted}'",
        )
    return Finding(True, f"{requirement.name} {found}")


def trl_engine() -> Finding:
    """Whether the installed TRL has what the engine needs."""
    try:
        from cotune.engines.trl.checks import SUPPORTED, check_trl

        check_trl()
    except ImportError as error:
        return Finding(False, f"engine trl: {one_line(error)}", "install trl and what it imports")
    except EngineError as error:
        what, _, mend = one_line(error).rpartition(": ")
        return Finding(False, f"engine trl: {what}", mend)
    return Finding(True, f"engine trl: in the range >={SUPPORTED[0]},<{SUPPORTED[1]}, hooks found")


# ---- the machine


def machine() -> list[Finding]:
    """CPU cores, memory, and GPUs with theirs."""
    memory = _memory()
    told = f", {memory / GIB:.1f} GiB of memory" if memory is not None else ""
    return [Finding(True, f"CPU: {_cores()} cores{told}"), *_gpus()]


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _memory() -> int | None:
    """The machine's memory, or the container's where that is less, in bytes."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total


def _gpus() -> list[Finding]:
    try:
        import torch
    except ImportError:
        return []  # said among the packages
    if not torch.cuda.is_available():
        return [Finding(True, "GPU: none; training is on the CPU")]
    found: list[Finding] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        free = torch.cuda.mem_get_info(index)[0]
        found.append(
            Finding(
                True,
                f"GPU {index}: {properties.name}, {free / GIB:.1f} of "
                f"{properties.total_memory / GIB:.1f} GiB free",
            )
        )
    return found


def missing(findings: Iterable[Finding]) -> bool:
    """Whether one of them is not well."""
    return any(not finding.ok for finding in findings)
