"""The model card of a run's best policy: README.md of `best/`, of an export, of a repository."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from cotune.config.run_file import RulesConfig, RunConfig, dump_config
from cotune.export.base_model import BaseModel, is_hub_id
from cotune.export.markdown import fenced, inline, table
from cotune.export.serving import Format, Serving
from cotune.run.ledger import Totals, policy_rollouts
from cotune.run.scores import EXACT_MATCH

_TRAINING = (
    "steps", "questions_per_step", "group_size", "mini_batches", "learning_rate", "schedule",
    "warmup", "kl", "clip", "temperature", "rollout_budget",
)  # fmt: skip
_OF_GRPO = ("steps", "kl", "clip")  # of these, what supervised fine-tuning does not use
_SCORES = (
    ("em", "trained, best instruction"),
    ("em_initial_instruction", "trained, initial instruction"),
    ("em_with_hint", "trained, best instruction and hint"),
    ("em_before", "before training, initial instruction"),
)
_VERSIONED = ("cotune", "trl", "transformers", "torch")
_FOLDER = "path/to/this/folder"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card is written from.

    Attributes:
        config: the run file.
        arm: the run's figures in summary.json.
        chosen: best.json.
        serving: how it was evaluated.
        totals: what the run cost; None where its ledger is gone.
        base: the model that was trained.
        kind: what the folder holds.
        where: the repository that it is in; "" for a folder.
    """

    config: RunConfig
    arm: Mapping[str, Any]
    chosen: Mapping[str, Any]
    serving: Serving
    totals: Totals | None
    base: BaseModel
    kind: Format
    where: str = ""

    @property
    def folder(self) -> str:
        return self.where or _FOLDER


def model_card(card: Card) -> str:
    """The card as Markdown with its YAML front matter."""
    sections = (
        _front_matter(card),
        _head(card),
        _results(card),
        _instruction(card),
        _serve(card),
        _data(card),
        _method(card),
        _cost(card),
        _license(card),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _method_line(config: RunConfig) -> str:
    """What was done, in a line."""
    method = config.method
    if not config.training.frozen:
        return method.card
    return f"{method.card_frozen or method.card}; the policy was frozen: its weights are the base's"


def _front_matter(card: Card) -> str:
    base, dataset = card.base, card.config.dataset
    values: dict[str, Any] = {}
    if base.hub_id:
        values["base_model"] = base.hub_id
        values["base_model_relation"] = "adapter" if card.kind == "adapter" else "finetune"
    values["library_name"] = "peft" if card.kind == "adapter" else "transformers"
    values["pipeline_tag"] = "text-generation"
    values["tags"] = ["cotune", *card.config.method.tags]
    values["license"] = base.license or "unknown"
    if base.license_name:
        values["license_name"] = base.license_name
    if dataset is not None and dataset.name and is_hub_id(dataset.name):
        values["datasets"] = [dataset.name]
    return f"---\n{yaml.safe_dump(values, sort_keys=False).strip()}\n---"


def _head(card: Card) -> str:
    method = _method_line(card.config)
    what = {
        "full": "Weights",
        "adapter": "A LoRA adapter",
        "merged": "Weights with a LoRA adapter merged in",
    }[card.kind]
    step, steps = card.chosen["step"], card.arm["steps"]
    which = "the last"
    if card.config.evaluation.every:
        which = f"the best on the validation split ({_number(card.chosen['em'])})"
    return (
        f"# {inline(card.config.name) or 'run'}\n\n"
        f"{what} of {inline(card.base.name)}, trained with cotune by {method}. Kept of step "
        f"{step:,} of {steps:,}: {which}."
    )


def _results(card: Card) -> str:
    columns = [(name, title) for name, title in _SCORES if card.arm.get(name) is not None]
    rows = [
        ["test questions", *[title for _, title in columns]],
        [f"all {card.arm['em_n']:,}", *[_number(card.arm[name]) for name, _ in columns]],
    ]
    for stratum in card.arm.get("em_by_stratum") or {}:
        scores = [card.arm[f"{name}_by_stratum"].get(stratum) for name, _ in columns]
        rows.append([inline(stratum), *["" if s is None else _number(s) for s in scores]])
    measure = inline(str(card.arm.get("measure", EXACT_MATCH)))
    notes = [f"{measure.capitalize()} of one greedy rollout a question."]
    if interval := card.arm.get("em_interval"):
        low, high = (_number(bound) for bound in interval)
        notes.append(f"95 % interval of the first figure: {low} to {high}.")
    if card.arm.get("too_close_to_call"):
        notes.append("The best instruction's lead over the next one is within its error.")
    return f"## Results\n\n{table(rows)}\n\n{' '.join(notes)}"


def _instruction(card: Card) -> str:
    text, hint, serving = card.chosen["instruction"], card.chosen["hint"], card.serving
    parts = ["## Instruction"]
    if not text:
        parts.append("None: it was trained and evaluated on the questions alone.")
    else:
        parts.append("`instruction.txt` has the very text.")
        parts.append(fenced(text))
    if serving.instruction_in_template:
        parts.append(
            "The chat template carries it: a request that holds the question alone is rendered to "
            "the tokens that were evaluated. The template argument `instruction` replaces it, and "
            '`instruction=""` leaves it out.'
        )
    elif text:
        parts.append(_placement(card))
    if hint:
        parts.append(
            "The hint below helped most in training (`hint.txt`). It is not in the chat template: "
            "what it taught is in the weights. Placed before the user's message it gives the "
            "figures with the hint."
        )
        parts.append(fenced(hint))
    return "\n\n".join(parts)


def _placement(card: Card) -> str:
    """How to place the instruction where the chat template does not."""
    laid_out = card.serving.instruction
    why = f"The chat template does not carry it, since {inline(card.serving.reason)}."
    if laid_out is None:
        return f"{why} Place it as that environment's `messages` does."
    prefix = (
        f" (itself after {_code(laid_out.question_prefix)})" if laid_out.question_prefix else ""
    )
    if laid_out.role == "system":
        there = "at its end" if laid_out.system == "keep" else "in its place"
        return f"{why} It was the system message; one that the data had kept it {there}."
    blank = laid_out.separator == "\n\n"
    between = "a blank line" if blank else f"{_code(laid_out.separator)} as it is"
    return (
        f"{why} It stood {laid_out.placement} the question{prefix} in the user's message, "
        f"{between} between them."
    )


def _serve(card: Card) -> str:
    serving, limits = card.serving, card.serving.limits
    greedy = """--override-generation-config '{"temperature": 0}'"""
    if card.kind == "adapter":
        base = card.base.hub_id or f"path/to/{card.base.name.removeprefix('bundled:')}"
        lora = card.config.policy.lora
        command = (
            f"vllm serve {quote(base)} {greedy} --enable-lora --max-lora-rank {lora.rank if lora else 16} \\\n"
            f"  --lora-modules policy={card.folder} --chat-template {card.folder}/chat_template.jinja"
        )
    else:
        command = f"vllm serve {card.folder} {greedy}"
    said = [
        f"It was evaluated greedily: at most {limits.turn_tokens:,} tokens a turn, "
        f"{limits.turns:,} turns, {limits.trajectory_tokens:,} tokens after the prompt."
    ]
    if serving.stop:
        stops = ", ".join(_code(stop) for stop in serving.stop)
        said.append(
            f"A turn ended at {stops}, which stayed in it: `stop` and `include_stop_str_in_output` "
            "of a request."
        )
    if serving.tools:
        tools = ", ".join(_code(tool) for tool in serving.tools)
        said.append(
            f"It was offered the tools {tools} through the chat template: `tools` of a request."
        )
    return f"## Serving\n\n{fenced(command, 'sh')}\n\n{' '.join(said)}"


def _data(card: Card) -> str:
    counts = ", ".join(f"{count:,} {split}" for split, count in card.serving.tasks.items())
    lines = [
        f"{_source(card.config)}; environment {_code(card.serving.environment)}. Questions: {counts}."
    ]
    if card.config.rewards:
        functions = ", ".join(
            f"{_code(_object(r.function))} (weight {r.weight:g})" for r in card.config.rewards
        )
        lines.append(f"Rewards: {functions}.")
    return "## Data\n\n" + " ".join(lines)


def _source(config: RunConfig) -> str:
    dataset, options = config.dataset, config.environment
    if dataset is not None:
        if dataset.name and is_hub_id(dataset.name):
            subset = f", subset {inline(dataset.subset)}" if dataset.subset else ""
            return f"Data set {inline(dataset.name)} of the Hugging Face hub{subset}"
        return f"The file {inline(Path(dataset.path or dataset.name or '').name)}"
    if options.kind == "geo":
        return "cotune's bundled world `geo` (facts from GeoNames, CC BY 4.0)"
    if options.kind == "arithmetic":
        return "cotune's bundled world `arithmetic`"
    if options.kind == "search" or options.kind == "math":
        given = (options.train, options.validation, options.test)
        files = [file for file in given if isinstance(file, Path)]
        named = ", ".join(inline(file.name) for file in files)
        return f"The file{'s' * (len(files) > 1)} {named}"
    if options.kind == "verifiers":
        return f"The verifiers environment {_code(_object(options.environment))}"
    return "The environment's own questions"


def _method(card: Card) -> str:
    config = card.config
    dumped, sft = dump_config(config), config.method.supervised
    unused = _OF_GRPO if sft else ()
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
        settings[f"also_set_of_{'SFTConfig' if sft else 'GRPOConfig'}"] = named
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()
    versions = ", ".join(f"{name} {found}" for name in _VERSIONED if (found := _version(name)))
    return (
        f"## Method\n\n{_method_line(config)}. Trained by `cotune train` with\n\n"
        f"{fenced(text, 'yaml')}\n\nProposals by {_proposer(config)}. This card was written by "
        f"{versions}."
    )


def _cost(card: Card) -> str:
    totals = card.totals
    if totals is None:
        return ""
    rows = [["", "rollouts", "generated tokens"]]
    for purpose, count in totals.rollouts.items():
        if count:
            rows.append([purpose, f"{count:,}", f"{totals.generated_tokens[purpose]:,}"])
    paid = policy_rollouts(totals.rollouts)
    lines = [f"Policy rollouts that the method paid for, without evaluation: {paid:,}."]
    if totals.llm_calls:
        lines.append(
            f"Calls of the proposing LLM: {totals.llm_calls:,} ({totals.llm_prompt_tokens:,} tokens "
            f"sent, {totals.llm_completion_tokens:,} received), {totals.money:.2f} at the run file's "
            "prices."
        )
    lines.append(f"Wall time: {card.arm['seconds']:,.0f} s.")
    return f"## Cost\n\n{table(rows)}\n\n{' '.join(lines)}"


def _license(card: Card) -> str:
    known = card.base.license_name or card.base.license
    if known:
        said = f"The base model's card says {_code(known)}; its terms hold for what is derived from it."
    else:
        said = "Unknown: it inherits the base model's licence."
    return f"## Licence\n\n{said}"


def _proposer(config: RunConfig) -> str:
    if not config.method.needs_llm:
        return "nobody: the instruction is fixed"
    options = config.llm or RulesConfig()
    # Not its address, which may be a machine's.
    return "cotune's offline rules" if isinstance(options, RulesConfig) else inline(options.model)


def _object(name: str) -> str:
    """`package.module:name` as it is; of `path/to/file.py:name` without its folder."""
    return Path(name).name if ".py" in name else name


def _code(text: str) -> str:
    return f"<code>{inline(text)}</code>"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
