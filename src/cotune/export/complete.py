"""`best/` made complete at the end of a run: chat template, generation config, model card.

While a run trains, `best/` holds weights, tokenizer and instruction. Once its results are known the
rest is written beside them, each file atomically and `serving.json` last, so that after a kill in
between completing it again repairs it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cotune.config.build import run_environment
from cotune.config.run_file import RunConfig
from cotune.environments.base import TaskEnvironment
from cotune.export.model_card import write_card
from cotune.export.serving import FILE, Serving, best_choice, read_result
from cotune.policy.chat_template import own_templates, with_instruction, without_instruction
from cotune.policy.policy_files import is_adapter
from cotune.protocols import Environment
from cotune.run.json_files import Row, write_atomic, write_json_atomic
from cotune.run.run_dir import RunDir
from cotune.types import Limits, Prompt, Task

_OF_THIS_MACHINE = ("is_local", "local_files_only", "name_or_path")
"""What transformers notes of where a tokenizer was loaded from."""
_COMPARED = 20  # questions for which the two renderings are compared


def complete_best(
    config: RunConfig, run: RunDir, environment: Environment | None = None
) -> Serving:
    """Make a finished run's `best/` a folder that can be served without changes.

    The chat template carries the best instruction if it renders questions of the validation split
    to the tokens of their evaluation; else it stays the model's own, and the card says how to
    place the instruction.

    Args:
        run: its folder, with its summary.json written.
        environment: the run's; built here if None.

    Returns:
        How the policy was evaluated.

    Raises:
        ConfigError: the run is not finished, or its environment or tokenizer cannot be loaded.
    """
    best = run.best_path
    summary = read_result(run)
    environment = environment or run_environment(config)
    tokenizer = _tokenizer(best)
    instruction = best_choice(best).instruction
    reason = _write_templates(
        config.policy.template_args, best, instruction, environment, tokenizer
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
        environment=type(environment).__name__,
        instruction=getattr(environment, "prompt_format", None),
        stop=tuple(environment.stop),
        tools=tuple(str(t.get("function", t).get("name", "")) for t in environment.tools),
        limits=config.limits,
        tasks={name: len(environment.tasks(name)) for name in ("train", "validation", "test")},
    )
    write_card(best, config, run, serving, "adapter" if is_adapter(best) else "full")
    write_json_atomic(best / FILE, asdict(serving))
    return serving


def complete_serving(run: RunDir) -> Serving | None:
    """Return how a finished run's policy was evaluated; None if its `best/` is not complete.

    Raises:
        ConfigError: the run is not finished.
    """
    attempt = read_result(run).get("attempt", run.attempt)
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


def _tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _write_templates(
    args: Mapping[str, Any],
    best: Path,
    instruction: str,
    environment: Environment,
    tokenizer: Any,
) -> str:
    """Write the chat template, or several by name; return why it lacks the instruction, or ""."""
    files = [best / "chat_template.jinja", *best.glob("additional_chat_templates/*.jinja")]
    templates = {
        file: without_instruction(file.read_text(encoding="utf-8"))
        for file in files
        if file.is_file()
    }
    reason = ""
    if not isinstance(environment, TaskEnvironment):
        reason = f"{type(environment).__name__} writes its own messages"
    elif not templates:
        reason = "the tokenizer has no chat_template.jinja"
    else:
        carrying = {
            file: with_instruction(template, environment.prompt_format, instruction, args)
            for file, template in templates.items()
        }
        if _renders_alike(args, best, carrying, instruction, environment, tokenizer):
            templates = carrying
        else:
            reason = f"{type(environment).__name__} lays some questions out in another way"
    for file, template in templates.items():
        if file.read_text(encoding="utf-8") != template:
            write_atomic(file, template)
    return reason


def _renders_alike(
    args: Mapping[str, Any],
    best: Path,
    carrying: Mapping[Path, str],
    instruction: str,
    environment: TaskEnvironment,
    tokenizer: Any,
) -> bool:
    """Return whether these templates render a question by itself to the evaluated tokens."""
    from jinja2.exceptions import TemplateError

    from cotune.policy.codec import HFCodec

    default = carrying.get(best / "chat_template.jinja", "")
    templates = {file.stem: template for file, template in carrying.items() if file.parent != best}
    tokenizer.chat_template = {"default": default, **templates} if templates else default
    codec = HFCodec(tokenizer, args)
    tools = [dict(tool) for tool in environment.tools]
    tasks = environment.tasks("validation") or environment.tasks("test")
    try:
        return all(
            tokenizer.apply_chat_template(
                codec.defused(question_messages(task)),
                tools=tools or None,
                add_generation_prompt=True,
                return_dict=False,
            )
            == codec.render(environment.messages(task, Prompt(instruction)), tools)
            for task in tasks[:_COMPARED]
        )
    except TemplateError:  # the model's own template refuses such a conversation
        return False
    finally:
        tokenizer.chat_template = own_templates(tokenizer.chat_template)


def question_messages(task: Task) -> list[dict[str, str]]:
    """Return the messages that a client of the served policy sends for a task.

    They are the data's messages before the question, and the question.
    """
    before = [{"role": role, "content": content} for role, content in task.context]
    return [*before, {"role": "user", "content": task.question}]
