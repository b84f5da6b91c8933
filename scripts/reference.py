"""The reference pages of the documentation, written from the code when the documentation is built.

`docs_hooks` puts them beside the pages of docs/, so that no copy can fall behind the code.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import typer
from run_file import configuration_page, escaped, suite_page, yaml_text  # of this folder

import cotune
from cotune.cli.app import app

_CLI = """# Command line

*Written from the commands themselves when this documentation was built.*

Each command is also `python -m cotune …`, which is what `torchrun -m` starts; in a clone it lies in
`.venv/bin`.

## Exit status

| status | meaning |
| --- | --- |
| 0 | done |
| 1 | something failed that no file of yours could have prevented: an endpoint, a budget, an engine |
| 2 | a run file, a folder or an argument that cannot work; one line says which field to change |
| 130 | stopped by Ctrl-C; the line says how to go on |

Errors go to standard error, in one line that begins with `cotune:`.
[Troubleshooting](../troubleshooting.md) lists them.
"""

_API = """# Python

*Written from the docstrings when this documentation was built.*

`import cotune` loads neither torch nor transformers nor trl; a name loads what it needs when it is
first used. What is not on this page is not public and may change without notice.
"""


def pages() -> dict[str, str]:
    """Markdown by the page's path below docs/."""
    return {
        "reference/configuration.md": configuration_page(),
        "reference/suite.md": suite_page(),
        "reference/cli.md": cli_page(),
        "reference/api.md": api_page(),
    }


# ---- the command line


def cli_page() -> str:
    """Every command with its arguments and options."""
    group = typer.main.get_command(app)
    parts = [_CLI, "## Options of cotune itself", _table(_shown(group))]
    return "\n\n".join([*parts, *_commands(group, "cotune")]) + "\n"


def _commands(group: Any, name: str) -> Iterator[str]:
    for own, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{name} {own}"
        if hasattr(command, "commands"):
            yield from _commands(command, full)
            continue
        shown = _shown(command)
        arguments = [_shown_name(p) for p in shown if p.param_type_name == "argument"]
        options = ["[OPTIONS]"] if len(arguments) < len(shown) else []
        yield f"## {full}"
        yield escaped(inspect.cleandoc(command.help or ""))
        yield f"```sh\n{' '.join([full, *options, *arguments])}\n```"
        if shown:
            yield _table(shown)


def _shown(command: Any) -> list[Any]:
    return [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]


def _table(parameters: list[Any]) -> str:
    rows = [f"| `{_shown_name(p)}` | {_default(p)} | {escaped(p.help or '')} |" for p in parameters]
    head = ["| argument | default | meaning |", "| --- | --- | --- |"]
    return "\n".join(['<div class="arguments" markdown>\n', *head, *rows, "\n</div>"])


def _shown_name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        return name if parameter.required or name.startswith("[") else f"[{name}]"
    names = " / ".join([*parameter.opts, *parameter.secondary_opts])
    return f"{names} {parameter.metavar}" if parameter.metavar else names


def _default(parameter: Any) -> str:
    if parameter.required:
        return "**required**"
    default = parameter.default
    if default is None or callable(default) or default == ():
        return ""
    return "off" if default is False else f"`{yaml_text(default)}`"


# ---- Python


def api_page() -> str:
    """A directive of mkdocstrings for each public name, in groups."""
    groups: dict[str, list[str]] = {}
    for name in cotune.__all__:
        groups.setdefault(_group(name), []).append(name)
    parts = [_API]
    for title in _GROUPS:
        if names := groups.get(title):
            parts.append(f"## {title}")
            parts += [f"::: cotune.{name}" for name in sorted(names, key=str.lower)]
    return "\n\n".join(parts) + "\n"


_GROUPS = (
    "Methods for your own trainer",
    "Options of the methods",
    "What you can bring",
    "Environments and rewards",
    "Optimizer LLMs",
    "Values",
    "Reading a run",
    "Errors",
    "Others",
)
_BY_PACKAGE = {
    "engines": "Methods for your own trainer",
    "methods": "Options of the methods",
    "protocols": "What you can bring",
    "environments": "Environments and rewards",
    "data": "Environments and rewards",
    "worlds": "Environments and rewards",
    "rewards": "Environments and rewards",
    "llm": "Optimizer LLMs",
    "types": "Values",
    "run": "Reading a run",
    "errors": "Errors",
}


def _group(name: str) -> str:
    """Return the group of a public name, by the package that it comes from."""
    package = cotune._MODULES[name].removeprefix("cotune.").partition(".")[0]
    return _BY_PACKAGE.get(package, "Others")
