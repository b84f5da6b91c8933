"""The model card of a run's best policy: README.md of `best/`, of an export, of a repository.

Texts of models and of the run file cannot end their block or become a tag, a link or a heading.
"""

import re
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from cotune.config.run_file import RunConfig, dump_config
from cotune.errors import ConfigError
from cotune.export.serving import Format, Serving, best_choice, finished
from cotune.policy.policy_files import is_local, policy_path
from cotune.run.json_files import Row, write_atomic
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.packages import installed
from cotune.utils.text import printable

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_TRAINING = (
    "steps", "questions_per_step", "group_size", "mini_batches", "learning_rate", "schedule",
    "warmup", "kl", "clip", "temperature", "rollout_budget",
)  # fmt: skip
_SCORES = {
    "em": "trained, best instruction",
    "em_initial_instruction": "trained, initial instruction",
    "em_with_hint": "trained, best instruction and hint",
    "em_before": "before training, initial instruction",
}
_VERSIONED = ("cotune", "trl", "verl", "transformers", "torch")


def hub_id(path: str) -> str:
    """Return a run file's `policy.path` if it is a repository of the hub; "" for a local policy."""
    return path if _HUB_ID.fullmatch(path) and not is_local(path) else ""


def base_name(path: str) -> str:
    """Return the name of the model that a policy was trained from, without its place on this machine."""
    if hub_id(path) or path.startswith("bundled:"):
        return path
    return Path(path).resolve().name


def base_license(path: str) -> dict[str, str]:
    """Return `license`, and `license_name` if that is "other", of the card of a policy's base.

    {} if it states none, or if the hub that has the card cannot be reached.
    """
    from huggingface_hub import ModelCard

    try:
        card = Path(policy_path(path)) / "README.md" if is_local(path) else hub_id(path)
        if not card or (isinstance(card, Path) and not card.is_file()):
            return {}
        data = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    # All that a download and a broken card raise.
    except (OSError, ValueError, ConfigError, yaml.YAMLError):
        return {}
    names = ("license", "license_name") if data.get("license") == "other" else ("license",)
    found = {name: data[name] for name in names if isinstance(data.get(name), str)}
    return found if all(map(_LICENSE.fullmatch, found.values())) else {}


def write_card(
    folder: Path, config: RunConfig, run: RunDir, serving: Serving, kind: Format
) -> None:
    """Replace README.md in a folder with the run's model card.

    Args:
        serving: how it was evaluated.
        kind: what the folder holds.
    """
    (arm,) = finished(run)["arms"].values()
    chosen, method, limits = best_choice(folder), config.method, serving.limits
    weights = {
        "full": "Weights",
        "adapter": "A LoRA adapter",
        "merged": "Weights with a LoRA adapter merged in",
    }
    license = base_license(config.policy.path)
    done = (method.card_frozen or method.card) if config.training.frozen else method.card
    if config.training.frozen:
        done += "; the policy was frozen: its weights are the base's"
    proposer = (
        f"Proposals by {inline(config.proposer.public_name)}."
        if config.proposer
        else "The instruction was fixed."
    )
    interval = arm.get("em_interval")
    parts = [
        f"# {inline(config.name) or 'run'}",
        f"{weights[kind]} of {inline(base_name(config.policy.path))}, trained with cotune. {inline(chosen.statement())}.",
        "## Results",
        _results(arm),
        f"{inline(arm.get('measure', EXACT_MATCH)).capitalize()} of one greedy rollout a question."
        + (
            " 95 % interval of the first figure: {:.3f} to {:.3f}.".format(*interval)
            if interval
            else ""
        ),
        "## Instruction",
        fenced(chosen.instruction)
        if chosen.instruction
        else "None: it was trained and evaluated on the questions only.",
    ]
    if serving.instruction_in_template:
        parts.append(
            "The chat template carries it: a request with only the question is rendered to the tokens that were "
            'evaluated. The template argument `instruction` replaces it, and `instruction=""` leaves it out.'
        )
    elif chosen.instruction:
        parts.append(
            f"The chat template does not carry it, since {inline(serving.reason)}. `serving.json` says where it stood."
        )
    if chosen.hint:
        parts += [
            "The hint that helped most in training; what it taught is in the weights:",
            fenced(chosen.hint),
        ]
    parts += [
        "## Serving",
        fenced(_serve_command(config, kind, "path/to/this/folder"), "sh"),
        f"It was evaluated greedily, with at most {limits.turn_tokens} tokens a turn and "
        f"{limits.trajectory_tokens} after the prompt. Turns: at most {limits.turns}.",
    ]
    if serving.stop:
        stops = ", ".join(map(_code, serving.stop))
        parts.append(
            f"A turn ended at {stops}: set `stop` and `include_stop_str_in_output` in a request."
        )
    if serving.tools:
        parts.append(
            f"It was offered the tools {', '.join(map(_code, serving.tools))}: pass them as `tools` of a request."
        )
    versions = ", ".join(f"{name} {version}" for name in _VERSIONED if (version := installed(name)))
    parts += [
        "## Method",
        f"{done}. Trained by `cotune train` with",  # Markdown of the method's own code
        fenced(_settings(config), "yaml"),
        f"{proposer} This card was written by {versions}.",
        "## Licence",
        f"The base model's card says {_code(' '.join(license.values()))}; its terms hold for what is derived from it."
        if license
        else "Unknown: it inherits the base model's licence.",
    ]
    front = _front_matter(config, arm, kind, license)
    write_atomic(folder / "README.md", f"---\n{front}\n---\n\n" + "\n\n".join(parts) + "\n")


def _front_matter(config: RunConfig, arm: Row, kind: Format, license: dict[str, str]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    dataset, base = config.dataset, hub_id(config.policy.path)
    hub_data = (
        dataset.name if dataset and dataset.name and not Path(dataset.name).exists() else None
    )
    data = hub_data or (
        Path(dataset.path or dataset.name or "").name if dataset else config.environment.kind
    )
    result = EvalResult(
        task_type="text-generation",
        dataset_type=data,
        dataset_name=data,
        dataset_split="test",
        metric_type=arm.get("measure", EXACT_MATCH).replace(" ", "_"),
        metric_value=round(arm["em"], 4),
    )
    adapter = kind == "adapter"
    license_fields: dict[str, Any] = {"license": "unknown"} | license
    return ModelCardData(
        base_model=base or None,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["cotune", *config.method.tags],
        datasets=[hub_data] if hub_data else None,
        model_name=re.sub(r"\W+", "-", config.name).strip("-") or "run",
        eval_results=[result],
        **license_fields,
    ).to_yaml()


def _results(arm: Row) -> str:
    """Return the table of scores: all questions, then each stratum."""
    names = [name for name in _SCORES if arm.get(name) is not None]
    rows = [["test questions", *(_SCORES[name] for name in names)], ["---", *["---:"] * len(names)]]
    rows.append([f"all {arm['em_n']:,}", *(f"{arm[name]:.3f}" for name in names)])
    for stratum in arm.get("em_by_stratum") or {}:
        scores = [arm[f"{name}_by_stratum"].get(stratum) for name in names]
        rows.append([inline(stratum), *("" if s is None else f"{s:.3f}" for s in scores)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _serve_command(config: RunConfig, kind: Format, folder: str) -> str:
    greedy = """--override-generation-config '{"temperature": 0}'"""
    if kind != "adapter":
        return f"vllm serve {folder} {greedy}"
    path, lora = config.policy.path, config.policy.lora
    weights = hub_id(path) or f"path/to/{base_name(path).removeprefix('bundled:')}"
    return (
        f"vllm serve {quote(weights)} {greedy} --enable-lora --max-lora-rank {lora.rank if lora else 16} \\\n"
        f"  --lora-modules policy={folder} --chat-template {folder}/chat_template.jinja"
    )


def _settings(config: RunConfig) -> str:
    """Return the part of the run file that says how it was trained, without what is private."""
    dumped = dump_config(config)
    settings: dict[str, Any] = {
        "seed": config.seed,
        "environment": config.environment.kind,
        "strategy": dumped["strategy"],
        "training": {name: dumped["training"][name] for name in _TRAINING},
        "limits": dumped["limits"],
    }
    if config.policy.lora is not None:
        settings["lora"] = dumped["policy"]["lora"]
    if config.policy.template_args:
        settings["template_args"] = dumped["policy"]["template_args"]
    if names := sorted(config.training.engine_args):
        settings["also_set"] = names
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()


def inline(text: str) -> str:
    """Return text for a line or a table's cell; possible syntax becomes character references."""
    line = " ".join(printable(" ".join(text.split())).split())
    safe = " /,-();'%" + ("" if "www." in line.lower() else ".")
    # A colon before a space ends neither a URL's scheme nor an emoji's name.
    parts = (
        "".join(c if c.isalnum() or c in safe else f"&#{ord(c)};" for c in part)
        for part in line.split(": ")
    )
    return ": ".join(parts)


def _code(text: str) -> str:
    return f"<code>{inline(text)}</code>"


def fenced(text: str, language: str = "text") -> str:
    """Return a code block around a text, its fence longer than any run of backticks in it.

    Control characters and bidirectional marks are left out.
    """
    shown = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"
