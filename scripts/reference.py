"""Write the reference pages that are generated from the code into docs/reference/.

They are in the repository, so that a code host shows them; a test fails if they are out of date.
"""

import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from run_file import configuration_page, escaped, suite_page, yaml_text  # of this folder

import cotune
from cotune.cli.app import app
from cotune.engines.trl.checks import REFUSED, refusal

_CLI = """# Command line

*Generated from the commands.*

Each command is also available as `python -m cotune …`, which is what `torchrun -m` starts.
"""

_CLI_STATUS = """## Exit status

| status | meaning |
| --- | --- |
| 0 | success |
| 1 | a failure that is not in your files, such as an engine's |
| 2 | an invalid run file, folder or argument; one line says which field to change |
| 130 | stopped with Ctrl-C or SIGTERM; one line says how to resume |

Errors are one line on standard error that starts with `cotune:`; those of an option's value stand in a box. See
[Troubleshooting](../how-to/troubleshooting.md).
"""

_GRPO = """# GRPOConfig fields

*Generated from the table that cotune checks fields against.*

In a script, `cotune.JointTrainer` reads these fields from its `args`; in a run file, `training.engine_args` sets them. Fields
that are not listed here work as TRL documents them: cotune passes them on unchanged. This also holds for fields of a later TRL,
which is why only reviewed minor releases are accepted.

A run file sets `output_dir`, batch sizes, steps and saving from its own sections ([configuration](configuration.md));
`training.engine_args` may not set them again, nor `eval_strategy`, `eval_on_start` and `load_best_model_at_end`: a run keeps
checkpoints in its folder and runs its own evaluations. `accelerate launch`'s configuration counts like `fsdp` and `deepspeed`.
"""

_API = """# Python

*Generated from the docstrings. `make docs` builds a page with signatures and whole descriptions, which `help(cotune.INSPO)` also
shows.*

`import cotune` does not load torch, transformers or trl; a name loads what it needs on first use. Names that are not
on this page are not public and may change without notice.
"""


FOLDER = Path(__file__).parent.parent / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Return the Markdown of each page by its file."""
    return {
        FOLDER / "configuration.md": configuration_page(),
        FOLDER / "suite.md": suite_page(),
        FOLDER / "cli.md": cli_page(),
        FOLDER / "api.md": api_page(),
        FOLDER / "grpo-config.md": grpo_page(),
    }


# ---- the command line


def cli_page() -> str:
    """Return an overview of the commands, then each with its arguments and options."""
    group = typer.main.get_command(app)
    parts = [
        _CLI,
        _overview(group),
        _CLI_STATUS,
        "## Options of cotune itself",
        _list(_shown(group)),
    ]
    parts += ["## Options of several commands", _list(_shared(group))]
    return "\n\n".join([*parts, *_commands(group, _shared(group))]) + "\n"


def _overview(group: Any) -> str:
    return (
        "Commands: "
        + ", ".join(f"[{name}](#cotune-{name})" for name, _ in _commands_of(group))
        + "."
    )


def _commands_of(group: Any) -> list[tuple[str, Any]]:
    return [(name, command) for name, command in group.commands.items() if not command.hidden]


def _commands(group: Any, shared: list[Any]) -> Iterator[str]:
    """Yield the parts of each command: its title, an example, what its help adds, its arguments."""
    elsewhere = {parameter.name for parameter in shared}
    for name, command in _commands_of(group):
        shown = _shown(command)
        yield f"## cotune {name}"
        yield escaped(inspect.cleandoc(command.help or ""))
        if command.epilog:
            yield f"```sh\n{command.epilog.removeprefix('Example: ')}\n```"
        own = [parameter for parameter in shown if parameter.name not in elsewhere]
        also = [parameter for parameter in shown if parameter.name in elsewhere]
        names = ", ".join(f"[`{p.opts[0]}`](#options-of-several-commands)" for p in also)
        if shown:
            yield "\n".join(filter(None, [_list(own), f"- Also {names}." if also else ""]))


def _shared(group: Any) -> list[Any]:
    """Return the options that several commands have with the same meaning, in order."""
    counts: Counter[str] = Counter()
    options: dict[str, Any] = {}
    for _, command in _commands_of(group):
        for parameter in _shown(command):
            if parameter.param_type_name == "option":
                text = _default(parameter) + (parameter.help or "")
                counts[text] += 1
                options.setdefault(text, parameter)
    return [options[text] for text, count in counts.items() if count > 1]


def _shown(command: Any) -> list[Any]:
    return [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]


def _list(parameters: list[Any]) -> str:
    return "\n".join(f"- {_name(p)}{_default(p)}: {escaped(p.help or '')}" for p in parameters)


def _name(parameter: Any) -> str:
    """Return the name as code, then its choices."""
    name, _, choices = _shown_name(parameter).partition(" ")
    if "|" not in choices:
        return f"`{_shown_name(parameter)}`"
    return f"`{name}` {'/'.join(f'`{choice}`' for choice in choices.split('|'))}"


def _shown_name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        return name if parameter.required or name.startswith("[") else f"[{name}]"
    names = " / ".join([*parameter.opts, *parameter.secondary_opts])
    return f"{names} {parameter.metavar}" if parameter.metavar else names


def _default(parameter: Any) -> str:
    if parameter.required:
        return " (**required**)"
    default = parameter.default
    if default is None or default is False or callable(default) or default == ():
        return ""
    return f" (`{yaml_text(default)}`)"


# ---- GRPOConfig

_PER_BATCH = "A multiple of the optimizer steps that a rollout batch takes."
_AS_STEPS = '"epoch" is counted in steps.'
_ONLY_IN_RUN_FILES = ("reward_weights", "shuffle_dataset")
"""Refused fields that a script may set."""
_PLAIN_ROWS = "Above 0, rollouts without an advantage are also trained on."

ADJUSTED = {
    "max_steps": f"{_PER_BATCH} Without it, `num_train_epochs` counts.",
    "num_iterations": "A rollout batch is trained on this many times, which are all optimizer steps.",
    "steps_per_generation": "A multiple of `gradient_accumulation_steps`. A rollout batch holds "
    "`per_device_train_batch_size` × processes × this many rollouts.",
    "temperature": "Used for training and verification, above 0; evaluation is greedy.",
    "max_completion_length": "Bounds an episode, tools' results included, unless the trainer has `limits`; "
    '`loss_type="dr_grpo"` divides by this field.',
    "mask_truncated_completions": "Rollouts that a token limit cut off get no gradient. (All of "
    "them end with an EOS, by which TRL would judge.)",
    "chat_template_kwargs": "Given to the chat template by cotune, which renders the prompts.",
    "loss_type": 'The papers\' loss is "grpo", TRL\'s default "dapo". `JointTrainer` leaves out '
    'rollouts without an advantage with "grpo", "dr_grpo", "dapo" and "cispo".',
    "importance_sampling_level": '"sequence" is refused with P²O\'s masked distillation: a token '
    "cannot be left out of the ratio of its sequence.",
    "beta": _PLAIN_ROWS,
    "entropy_coef": _PLAIN_ROWS,
    "seed": "Also seeds rollouts and the order of questions; `data_seed` has no effect.",
    "save_strategy": _AS_STEPS,
    "save_steps": _PER_BATCH,
    "load_best_model_at_end": "No effect: with `eval_strategy` the best policy is kept and loaded, with its instruction.",
    "metric_for_best_model": 'For example "eval_reward", with `greater_is_better=True`; a loss is '
    "refused.",
    "resume_from_checkpoint": "Not read by the trainer: call "
    "`trainer.train(resume_from_checkpoint=True)`.",
    "eval_strategy": f"Evaluation is greedy, under the best instruction, and changes nothing in training. {_AS_STEPS}",
    "eval_steps": _PER_BATCH,
    "num_generations_eval": "No effect: each question is rolled out once.",
    "logging_strategy": f'"no" leaves metrics.jsonl empty. {_AS_STEPS}',
    "report_to": "Trackers also receive cotune's metrics and evaluations; metrics.md lists the names.",
    "deepspeed": "ZeRO stages 1 and 2; stage 3 is refused: no process holds whole weights.",
    "fsdp": "FSDP2, which is torch's `fully_shard`; weights are gathered while sampling.",
    "fsdp_config": "Version 1 and `cpu_ram_efficient_loading` are refused.",
    "vllm_tensor_parallel_size": "A divisor of the processes that train.",
    "ddp_timeout": "The other ranks wait this long for rank 0's proposals.",
}
"""By field, a condition on its value, or what cotune does instead of TRL."""


def grpo_page() -> str:
    """Return the page of GRPOConfig: lists of refused and of adjusted fields."""
    refused = {name: f"- `{name}`: {refusal(name)}." for name in REFUSED}
    in_run_files = [refused.pop(name) for name in _ONLY_IN_RUN_FILES]
    adjusted = [f"- `{name}`: {line}" for name, line in ADJUSTED.items()]
    return "\n".join(
        [
            _GRPO,
            "## Refused\n\nA one-line error, before anything is written.\n",
            *refused.values(),
            "\n## Refused in a run file\n\nA script may set them.\n",
            *in_run_files,
            "\n## Adjusted, or with a condition\n",
            *adjusted,
            "",
        ]
    )


# ---- Python


def api_page() -> str:
    """Return each public name with its summary, in groups; scripts/site_links.py puts the docstrings there."""
    groups: dict[str, list[str]] = {}
    for name in cotune.__all__:
        groups.setdefault(_group(name), []).append(name)
    parts = [_API]
    for title in _GROUPS:
        if names := groups.get(title):
            names.sort(key=str.lower)
            parts.append(f"## {title}")
            parts.append("\n".join(map(_summary_item, names)))
    return "\n\n".join(parts) + "\n"


def _summary_item(name: str) -> str:
    paragraph = inspect.getdoc(getattr(cotune, name)).split("\n\n")[0]  # pyright: ignore[reportOptionalMemberAccess]
    return f"- `{name}`: {escaped(' '.join(paragraph.split()))}"


_GROUPS = (
    "Training in a script",
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
    "engines": "Training in a script",
    "config": "Training in a script",
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


if __name__ == "__main__":
    for file, text in pages().items():
        file.write_text(text, encoding="utf-8")
