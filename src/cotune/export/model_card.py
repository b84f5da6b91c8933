"""The model card of a run's best policy: README.md of `best/`, of an export, of a repository.

`model_card.md.j2` holds its text. Texts of models and of the run file cannot end their block or
become a tag, a link or a heading.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from cotune.config.run_file import EnvironmentOptions, RunConfig, dump_config
from cotune.data.dataset import DatasetConfig
from cotune.errors import ConfigError
from cotune.export.serving import Format, Serving, best_choice, finished
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import check_path, is_local, known_path
from cotune.run.json_files import Row, write_atomic
from cotune.run.ledger import Ledger, policy_rollouts
from cotune.run.run_dir import RunDir
from cotune.run.scores import EXACT_MATCH
from cotune.utils.packages import installed
from cotune.utils.text import printable

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_HUB_SECONDS = 5.0  # for asking the hub for a card
_TRAINING = (
    "steps", "questions_per_step", "group_size", "mini_batches", "learning_rate", "schedule",
    "warmup", "kl", "clip", "temperature", "rollout_budget",
)  # fmt: skip
_OF_GRPO = ("steps", "kl", "clip")  # settings that supervised fine-tuning does not use
_SCORES = {
    "em": "trained, best instruction",
    "em_initial_instruction": "trained, initial instruction",
    "em_with_hint": "trained, best instruction and hint",
    "em_before": "before training, initial instruction",
}
_VERSIONED = ("cotune", "trl", "verl", "transformers", "torch")


@dataclass(frozen=True, kw_only=True)
class InitialPolicy:
    """The model that a policy was trained from, without its path on the machine that trained it.

    Attributes:
        name: a hub id, "bundled:geo", or the last part of the path of a local folder or GGUF file.
        hub_id: the name if it is a hub id; "" otherwise.
        license: the license on its own card; "" if it states none.
        license_name: the name that a card gives a license "other"; "" if none.
    """

    name: str
    hub_id: str = ""
    license: str = ""
    license_name: str = ""


def base_model(path: str) -> InitialPolicy:
    """Return the base model of a run file's `policy.path`.

    The license is read from its card: in its folder, in the hub's cache, else from the hub itself.
    If the hub cannot be reached it stays unknown.
    """
    bundled, local = path.startswith("bundled:"), is_local(path)
    if not local and not is_hub_id(path):  # a folder that no longer exists
        return InitialPolicy(name=Path(path).name)
    known = _card_metadata(path, local)
    license, name = _license(known.get("license")), _license(known.get("license_name"))
    return InitialPolicy(
        name=_local_name(path) if local and not bundled else path,
        hub_id="" if local else path,
        license=license,
        license_name=name if license == "other" else "",
    )


def _local_name(path: str) -> str:
    """Return the name of a local folder, or of a GGUF file without its suffix."""
    try:
        file = check_path(path)
    except ConfigError:  # a package that is no longer installed
        file = None
    return Path(path).resolve().name if file is None else file.stem


def is_hub_id(name: str) -> bool:
    """Return whether a name can be a repository of the hub, and is not a local path."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def _card_metadata(path: str, local: bool) -> dict[str, Any]:
    """Return the front matter of a model's card; {} if there is none that can be read."""
    from huggingface_hub import hf_hub_download, metadata_load, try_to_load_from_cache

    try:
        if local:
            known = known_path(path)
            if known is None:
                return {}
            card = Path(known) / "README.md"
        else:
            card = try_to_load_from_cache(path, "README.md")
            if not isinstance(card, str):
                card = hf_hub_download(path, "README.md", etag_timeout=_HUB_SECONDS)
        return metadata_load(card) or {}
    # OSError and ValueError are all that a download raises.
    except (OSError, ValueError, ConfigError, yaml.YAMLError):
        return {}


def _license(value: object) -> str:
    """Return a license's identifier; "" for anything else that a card may hold."""
    return value if isinstance(value, str) and _LICENSE.fullmatch(value) else ""


def write_card(
    folder: Path, config: RunConfig, run: RunDir, serving: Serving, kind: Format, where: str = ""
) -> None:
    """Replace README.md in a folder with the run's model card.

    Args:
        serving: how it was evaluated.
        kind: what the folder holds.
        where: the repository to upload to; "" for a folder.
    """
    totals = None
    if run.ledger_path.is_file():
        with Ledger(run.ledger_path) as ledger:
            totals = ledger.totals()
    (arm,) = finished(run)["arms"].values()
    arm = {
        "em_interval": None, "too_close_to_call": False, "measure": EXACT_MATCH, "failed_phases": 0,
        **arm,
    }  # fmt: skip
    base, method = base_model(config.policy.path), config.method
    done = method.card
    if config.training.frozen:
        done = f"{method.card_frozen or done}; the policy was frozen: its weights are the base's"
    costs = [["", "rollouts", "generated tokens"]]
    if totals is not None:
        spent, tokens = totals.rollouts, totals.generated_tokens
        costs += [[k, f"{n:,}", f"{tokens[k]:,}"] for k, n in spent.items() if n]
    text = _template().render(
        config=config,
        kind=kind,
        base=base,
        arm=arm,
        chosen=best_choice(folder),
        serving=serving,
        totals=totals,
        # YAML escapes the values.
        front_matter=Markup(_front_matter(config, base, arm, kind)),
        method=Markup(done),  # Markdown of the method's own code
        results=_results(arm),
        command=_serve_command(config.policy.lora, base, kind, where or "path/to/this/folder"),
        source=_source(config.environment, config.dataset),
        settings=_settings(config),
        proposer=inline(config.proposer.public_name) if config.proposer else "",
        versions=", ".join(f"{p} {found}" for p in _VERSIONED if (found := installed(p))),
        costs=costs,
        paid=policy_rollouts(totals.rollouts) if totals else 0,
    )
    write_atomic(folder / "README.md", text.rstrip() + "\n")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader(__package__ or __name__, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "inline": inline,
        "fenced": fenced,
        "code": lambda text: Markup("<code>{}</code>").format(inline(text)),
        "count": "{:,.0f}".format,
        "score": "{:.3f}".format,
        # Keep `package.module:name`; drop the folder of `path/to/file.py:name`.
        "object_name": lambda name: Path(name).name if ".py" in name else name,
    }
    return environment.get_template("model_card.md.j2")


def _front_matter(config: RunConfig, base: InitialPolicy, arm: Row, kind: Format) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    dataset = config.dataset
    hub_data = dataset.name if dataset and dataset.name and is_hub_id(dataset.name) else None
    data_name = hub_data or config.environment.kind
    if dataset is not None and hub_data is None:
        data_name = Path(dataset.path or dataset.name or "").name
    result = EvalResult(
        task_type="text-generation",
        dataset_type=data_name,
        dataset_name=data_name,
        dataset_config=dataset.subset if dataset and hub_data else None,
        dataset_split="test",
        metric_type=arm["measure"].replace(" ", "_"),
        metric_value=round(arm["em"], 4),
    )
    adapter = kind == "adapter"
    return ModelCardData(
        base_model=base.hub_id or None,
        base_model_relation=("adapter" if adapter else "finetune") if base.hub_id else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["cotune", *config.method.tags],
        license=base.license or "unknown",
        license_name=base.license_name or None,
        datasets=[hub_data] if hub_data else None,
        model_name=re.sub(r"\W+", "-", config.name).strip("-") or "run",
        eval_results=[result],
    ).to_yaml()


def _results(arm: Row) -> list[list[str]]:
    """Return the table of scores: its header, all questions, and each stratum."""
    columns = [name for name in _SCORES if arm.get(name) is not None]
    rows = [
        ["test questions", *(_SCORES[name] for name in columns)],
        [f"all {arm['em_n']:,}", *(f"{arm[name]:.3f}" for name in columns)],
    ]
    for stratum in arm.get("em_by_stratum") or {}:
        scores = [arm[f"{name}_by_stratum"].get(stratum) for name in columns]
        rows.append([inline(stratum), *("" if s is None else f"{s:.3f}" for s in scores)])
    return rows


def _serve_command(lora: LoraOptions | None, base: InitialPolicy, kind: Format, folder: str) -> str:
    greedy = """--override-generation-config '{"temperature": 0}'"""
    if kind != "adapter":
        return f"vllm serve {folder} {greedy}"
    weights = base.hub_id or f"path/to/{base.name.removeprefix('bundled:')}"
    return (
        f"vllm serve {quote(weights)} {greedy} --enable-lora --max-lora-rank {lora.rank if lora else 16} \\\n"
        f"  --lora-modules policy={folder} --chat-template {folder}/chat_template.jinja"
    )


def _source(options: EnvironmentOptions, dataset: DatasetConfig | None) -> Markup:
    """Return where the questions came from, as Markdown."""
    if dataset is not None:
        if dataset.name and is_hub_id(dataset.name):
            subset = Markup(", subset {}").format(inline(dataset.subset)) if dataset.subset else ""
            said = Markup("Data set {} of the Hugging Face hub{}")
            return said.format(inline(dataset.name), subset)
        return Markup("The file ") + inline(Path(dataset.path or dataset.name or "").name)
    if options.kind == "geo":
        return Markup("cotune's bundled world `geo` (facts from GeoNames, CC BY 4.0)")
    if options.kind == "ladder":
        return Markup("cotune's bundled world `ladder`")
    if options.kind == "search":
        given = (options.train, options.validation, options.test)
        files = [inline(file.name) for file in given if isinstance(file, Path)]
        return Markup("The files " if len(files) > 1 else "The file ") + Markup(", ").join(files)
    if options.kind == "reasoning-gym":
        names = Markup(", ").join(inline(task.name) for task in options.tasks)
        return Markup("Questions that reasoning-gym generates: ") + names
    if options.kind == "verifiers":
        name = options.environment
        name = Path(name).name if ".py" in name else name
        return Markup("The verifiers environment <code>{}</code>").format(inline(name))
    return Markup("The environment's own questions")


def _settings(config: RunConfig) -> str:
    """Return the part of the run file that says how it was trained, without what is private."""
    dumped, supervised = dump_config(config), config.method.supervised
    unused = _OF_GRPO if supervised else ()
    settings: dict[str, Any] = {
        "seed": config.seed,
        "strategy": dumped["strategy"],
        "training": {name: dumped["training"][name] for name in _TRAINING if name not in unused},
        "limits": dumped["limits"],
    }
    if config.policy.lora is not None:
        settings["lora"] = dumped["policy"]["lora"]
    if config.policy.template_args:
        settings["template_args"] = dumped["policy"]["template_args"]
    if named := sorted(config.training.engine_args):
        settings[f"also_set_of_{'SFTConfig' if supervised else 'GRPOConfig'}"] = named
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()


def inline(text: str) -> Markup:
    """Return text for a line or a table's cell; possible syntax becomes character references."""
    line = " ".join(printable(" ".join(text.split())).split())
    safe = " /,-();'%" + ("" if "www." in line.lower() else ".")
    # A colon before a space ends neither a URL's scheme nor an emoji's name.
    parts = (
        "".join(c if c.isalnum() or c in safe else f"&#{ord(c)};" for c in part)
        for part in line.split(": ")
    )
    return Markup(": ".join(parts))


def fenced(text: str, language: str = "text") -> Markup:
    """Return a code block around a text, its fence longer than any run of backticks in it.

    Control characters and bidirectional marks are left out.
    """
    shown = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max(map(len, re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return Markup(f"{fence}{language}\n{shown}\n{fence}")
