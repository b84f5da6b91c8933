"""A run's best policy as a folder that can be served: `best/` made complete, and `cotune export`.

While a run trains, `best/` holds weights, tokenizer and instruction. Once its results are known, chat template,
generation config and model card are written beside them, each file atomically and `serving.json` last, so that after a
kill in between completing it again repairs it.
"""

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import jinja2
import yaml
from huggingface_hub import ModelCardData
from pydantic import TypeAdapter, ValidationError

from cotune.config.build import run_environment
from cotune.config.resuming import open_trained
from cotune.config.run_file import RunConfig, ScriptRun
from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.errors import ConfigError
from cotune.policy.chat_template import with_instruction
from cotune.policy.policy_files import check_whole, is_adapter, is_local, policy_path
from cotune.protocols import Environment
from cotune.run.best import BestRecord, read_best
from cotune.run.json_files import Row, check_folder, write_atomic, write_json_atomic
from cotune.run.run_dir import RunDir
from cotune.types import Limits, Prompt
from cotune.utils.text import one_line, printable

FILE = "serving.json"

_OF_THIS_MACHINE = ("is_local", "local_files_only", "name_or_path")
"""What transformers notes of where a tokenizer was loaded from."""
_COMPARED = 20  # questions for which the two renderings are compared


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The settings of the evaluation, which a server must share: `best/serving.json`."""

    attempt: int
    """The run's attempt whose result this is."""
    instruction_in_template: bool
    """Whether the chat template carries the best instruction."""
    reason: str
    """Why it does not; "" if it does."""
    instruction: PromptFormat | None
    """Layout of instruction and question; None if no chat template can have it."""
    stop: tuple[str, ...]
    """Strings after which a turn ended, each kept at its end."""
    tools: tuple[str, ...]
    """Names of the tools that were offered through the chat template."""
    limits: Limits

    schema_version: Literal[1] = 1


def read_result(run: RunDir) -> tuple[Row, BestRecord]:
    """Return the summary of a finished run, and what it keeps. Raises ConfigError for others."""
    summary = run.read_summary()
    chosen = read_best(run.best_path)
    if summary is None or chosen is None:
        raise ConfigError(
            f"{run.path}: not finished, so its best policy is not chosen yet; finish it with: "
            f"{run.how_to_resume()}"
        )
    return summary, chosen


def complete_best(
    config: RunConfig, run: RunDir, environment: Environment | None = None, tokenizer: Any = None
) -> Serving:
    """Make a finished run's `best/` a folder that can be served without changes.

    The chat template carries the best instruction if it renders questions of the validation split to the tokens of
    their evaluation; else it stays the model's own, and the card says how to place the instruction.

    Args:
        run: its folder, with its summary.json written.
        environment, tokenizer: the run's; built and loaded here if None.

    Raises:
        ConfigError: the run is not finished, or its environment or tokenizer cannot be loaded.
    """
    best = run.best_path
    summary, chosen = read_result(run)
    environment = environment or run_environment(config)
    if tokenizer is None:
        from cotune.policy.local_policy import load_tokenizer

        tokenizer = load_tokenizer(best)
    layout, reason = write_template(
        config.policy.template_args, best, chosen.instruction, environment, tokenizer
    )
    settings = best / "tokenizer_config.json"
    if settings.is_file():
        fields: dict[str, Any] = json.loads(settings.read_bytes())
        public = {name: value for name, value in fields.items() if name not in _OF_THIS_MACHINE}
        if public != fields:
            write_json_atomic(settings, public)
    _write_generation_config(best, config.limits, tokenizer)
    serving = Serving(
        attempt=summary.get("attempt", run.attempt),
        instruction_in_template=not reason,
        reason=reason,
        instruction=layout,
        stop=tuple(environment.stop),
        tools=tuple(str(t.get("function", t).get("name", "")) for t in environment.tools),
        limits=config.limits,
    )
    write_card(best, config, run, serving)
    write_json_atomic(best / FILE, asdict(serving))
    return serving


def complete_serving(run: RunDir) -> Serving | None:
    """Return how a finished run's policy was evaluated; None if its `best/` is not complete.

    Raises ConfigError: the run is not finished.
    """
    summary, _ = read_result(run)
    attempt = summary.get("attempt", run.attempt)
    try:
        serving = TypeAdapter(Serving).validate_json((run.best_path / FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    return serving if serving.attempt == attempt else None


def _write_generation_config(folder: Path, limits: Limits, tokenizer: Any) -> None:
    """Replace generation_config.json: greedy, one turn at a time, as the run was evaluated.

    The tokens that end a turn are those of the old file and the tokenizer's.
    """
    path = folder / "generation_config.json"
    former: Row = json.loads(path.read_bytes()) if path.is_file() else {}
    ends = former.get("eos_token_id")
    ends = [end for end in (ends if isinstance(ends, list) else [ends]) if end is not None]
    if tokenizer.eos_token_id not in ends:
        ends.insert(0, tokenizer.eos_token_id)
    values = {
        "bos_token_id": former.get("bos_token_id"),
        "do_sample": False,
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "max_new_tokens": limits.turn_tokens,
        "pad_token_id": tokenizer.pad_token_id,
        "transformers_version": former.get("transformers_version"),
    }
    write_json_atomic(path, {name: value for name, value in values.items() if value is not None})


def write_template(
    args: Mapping[str, Any],
    folder: Path,
    instruction: str,
    environment: Environment,
    tokenizer: Any,
) -> tuple[PromptFormat | None, str]:
    """Let the chat template in a folder carry an instruction if it can.

    The tokenizer renders some of the environment's questions, to compare.

    Returns:
        The layout of instruction and question, None if the environment has none; and why the template does not
        carry the instruction, "" if it does.
    """
    if not isinstance(environment, TaskEnvironment):
        return None, f"{type(environment).__name__} writes its own messages"
    layout = environment.served_format(instruction)
    file = folder / "chat_template.jinja"
    if not file.is_file() or (folder / "additional_chat_templates").is_dir():
        return layout, "the tokenizer has no chat template, or several"
    if layout is None:
        return layout, "the prompts are plain texts, or it stands within them"
    template = with_instruction(file.read_text(encoding="utf-8"), layout, instruction, args)
    if not _renders_alike(args, template, instruction, environment, tokenizer):
        return layout, f"{type(environment).__name__} lays some questions out in another way"
    write_atomic(file, template)
    return layout, ""


def _renders_alike(
    args: Mapping[str, Any],
    template: str,
    instruction: str,
    environment: TaskEnvironment,
    tokenizer: Any,
) -> bool:
    """Return whether a chat template renders a question by itself to the evaluated tokens."""
    from cotune.policy.codec import HFCodec

    before = tokenizer.chat_template
    tokenizer.chat_template = template
    codec = HFCodec(tokenizer, args)
    tools = [dict(tool) for tool in environment.tools]
    splits = map(environment.tasks, ("validation", "test", "train"))
    tasks = next(filter(None, splits), ())
    try:
        return all(
            tokenizer.apply_chat_template(
                codec.defused(environment.question_messages(task)),
                tools=tools or None,
                add_generation_prompt=True,
                return_dict=False,
            )
            == codec.render(environment.messages(task, Prompt(instruction)), tools)
            for task in tasks[:_COMPARED]
        )
    except jinja2.TemplateError:  # the model's own template refuses such a conversation
        return False
    finally:
        tokenizer.chat_template = before


# ---- the model card

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_SCORES = {
    "em": "trained, best instruction",
    "em_initial_instruction": "trained, initial instruction",
    "em_with_hint": "trained, best instruction and hint",
    "em_before": "before training, initial instruction",
}


def hub_id(path: str) -> str:
    """Return a run file's `policy.path` if it is a repository of the hub; "" for a local policy."""
    return path if _HUB_ID.fullmatch(path) and not is_local(path) else ""


def base_name(path: str) -> str:
    """Return the name of the model that a policy was trained from, without its place on this machine."""
    if hub_id(path) or path.startswith("bundled:"):
        return path
    return Path(path).resolve().name if path else "a model without a name"


def write_card(folder: Path, config: RunConfig, run: RunDir, serving: Serving) -> None:
    """Replace README.md in a folder, which holds the policy, with the finished run's model card.

    Texts of models and of the run file cannot end their block or become a tag, a link or a heading.
    """
    summary, chosen = read_result(run)
    (arm,) = summary["arms"].values()
    weights = "Weights with a LoRA adapter merged in" if config.policy.lora else "Weights"
    if is_adapter(folder):
        weights = "A LoRA adapter"
    front = ModelCardData(
        base_model=hub_id(config.policy.path) or None,
        library_name="peft" if is_adapter(folder) else "transformers",
        pipeline_tag="text-generation",
        tags=["cotune", "grpo", config.strategy.kind],
        model_name=re.sub(r"\W+", "-", config.name).strip("-") or "run",
    )
    # It is Markdown: texts are escaped by `inline` and `code_block`.
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("cotune.export", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "inline": inline,
        "block": code_block,
        "code": lambda text: f"<code>{inline(text)}</code>",
    }
    card = templates.get_template("card.md.j2").render(
        front=front.to_yaml(),
        config=config,
        chosen=chosen,
        serving=serving,
        arm=arm,
        weights=weights,
        base=base_name(config.policy.path),
        scores={title: arm[name] for name, title in _SCORES.items() if arm.get(name) is not None},
        command=_serve_command(config, folder),
        trained_by="cotune.JointTrainer" if isinstance(config, ScriptRun) else "cotune train",
        settings=_settings(run.read_config()),
    )
    write_atomic(folder / "README.md", card)


def _serve_command(config: RunConfig, policy: Path) -> str:
    folder = "path/to/this/folder"
    greedy = """--override-generation-config '{"temperature": 0}'"""
    if not is_adapter(policy):
        return f"vllm serve {folder} {greedy}"
    path = config.policy.path
    rank = json.loads((policy / "adapter_config.json").read_bytes())["r"]
    weights = hub_id(path) or f"path/to/{base_name(path).removeprefix('bundled:')}"
    return (
        f"vllm serve {quote(weights)} {greedy} --enable-lora --max-lora-rank {rank} \\\n"
        f"  --lora-modules policy={folder} --chat-template {folder}/chat_template.jinja"
    )


def _settings(config: Row) -> str:
    """Return the part of run.yaml that says how it was trained, without what is private."""
    del config["training"]["engine_args"]
    names = ("seed", "strategy", "training", "limits")
    settings = {name: config[name] for name in names} | {"lora": config["policy"].get("lora")}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).strip()


def inline(text: str) -> str:
    """Return text for a line or a table's cell; possible syntax becomes character references."""
    line = one_line(text)
    safe = " /,-();'%" + ("" if "www." in line.lower() else ".")
    # A colon before a space ends neither a URL's scheme nor an emoji's name.
    parts = (
        "".join(c if c.isalnum() or c in safe else f"&#{ord(c)};" for c in part)
        for part in line.split(": ")
    )
    return ": ".join(parts)


def code_block(text: str, language: str = "text") -> str:
    """Return a code block around a text, its fence longer than any run of backticks in it.

    Control characters and bidirectional marks are left out.
    """
    line = printable(text.replace("\r\n", "\n").replace("\r", "\n"))
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{line}\n{fence}"


# ---- cotune export

# Files of `best/` that merged weights replace.
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json")


def export(folder: Path, merge: bool = False, output: Path | None = None) -> Path:
    """Write a finished run's best policy into a folder that can be served without changes; return the folder.

    Args:
        merge: add an adapter to its base's weights; whole weights stay as they are.
        output: the folder to write, which must be empty; `export` in the run folder by default.

    Raises:
        ConfigError: the run is not finished, or `output` is not empty or cannot be written. Nothing is written then.
    """
    run, config = open_trained(folder)
    read_result(run)
    target = output or run.path / "export"
    check_folder(target, "--output")
    if target.exists() and any(target.iterdir()):
        raise ConfigError(
            f"--output: {target} exists and is not an empty folder; remove it, or name another"
        )
    staged = target / ".new"
    try:
        staged.mkdir(parents=True)
        _stage(config, run, merge and is_adapter(run.best_path), staged)
        for path in staged.iterdir():
            path.rename(target / path.name)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        with suppress(OSError):
            target.rmdir()  # if nothing was written
    return target


def _stage(config: RunConfig, run: RunDir, merge: bool, staged: Path) -> None:
    """Write the export into an empty folder; complete `best/` first if a kill has left it incomplete."""
    for path in sorted(run.best_path.rglob("*")):
        # It could copy any file into an export.
        if path.is_symlink():
            raise ConfigError(
                f"{path}: is a symbolic link, which cotune never writes; replace it with the file"
            )
    check_whole(run.best_path)
    serving = complete_serving(run) or complete_best(config, run)
    skipped = shutil.ignore_patterns(".*", *(_WEIGHT_FILES if merge else ()))
    shutil.copytree(run.best_path, staged, ignore=skipped, dirs_exist_ok=True)
    if merge:
        from cotune.policy.local_policy import load

        base = policy_path(config.policy.path)
        model, _ = load(run.best_path, config.policy.dtype, base=base, merge=True)
        model.save_pretrained(staged)
        # That wrote the base's, which does not say how the policy was evaluated.
        shutil.copy(run.best_path / "generation_config.json", staged)
        write_card(staged, config, run, serving)
