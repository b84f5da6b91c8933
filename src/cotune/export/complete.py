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
from cotune.environments.base import PromptFormat, TaskEnvironment
from cotune.export.model_card import write_card
from cotune.export.serving import FILE, Serving, read_result
from cotune.policy.chat_template import with_instruction, without_instruction
from cotune.policy.policy_files import is_adapter
from cotune.protocols import Environment
from cotune.run.json_files import Row, write_atomic, write_json_atomic
from cotune.run.run_dir import RunDir
from cotune.types import Limits, Prompt

_OF_THIS_MACHINE = ("is_local", "local_files_only", "name_or_path")
"""What transformers notes of where a tokenizer was loaded from."""
_COMPARED = 20  # questions for which the two renderings are compared


def complete_best(
    config: RunConfig,
    run: RunDir,
    environment: Environment | None = None,
    tokenizer: Any = None,
) -> Serving:
    """Make a finished run's `best/` a folder that can be served without changes.

    The chat template carries the best instruction if it renders questions of the validation split
    to the tokens of their evaluation; else it stays the model's own, and the card says how to
    place the instruction.

    Args:
        run: its folder, with its summary.json written.
        environment, tokenizer: the run's; built and loaded here if None.

    Returns:
        How the policy was evaluated.

    Raises:
        ConfigError: the run is not finished, or its environment or tokenizer cannot be loaded.
    """
    best = run.best_path
    summary, chosen = read_result(run)
    environment = environment or run_environment(config)
    if tokenizer is None:
        from cotune.policy.local_policy import load_tokenizer

        tokenizer = load_tokenizer(best)
    layout, reason = write_templates(
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
        environment=type(environment).__name__,
        instruction=layout,
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


def write_templates(
    args: Mapping[str, Any],
    folder: Path,
    instruction: str,
    environment: Environment,
    tokenizer: Any,
) -> tuple[PromptFormat | None, str]:
    """Let the chat template in a folder, or several by name, carry an instruction if it can.

    Args:
        args: template arguments of the run.
        folder: a policy's folder.
        environment: what the policy was evaluated on.
        tokenizer: renders some of its questions, to compare.

    Returns:
        The layout of instruction and question, None if the environment has none; and why the template does not
        carry the instruction, "" if it does.
    """
    files = [folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja")]
    templates = {
        file: without_instruction(file.read_text(encoding="utf-8"))
        for file in files
        if file.is_file()
    }
    layout = None
    reason = ""
    if not isinstance(environment, TaskEnvironment):
        reason = f"{type(environment).__name__} writes its own messages"
    else:
        layout = environment.served_format(instruction)
        if not templates:
            reason = "the tokenizer has no chat_template.jinja"
        elif layout is None:
            reason = "the prompts are plain texts, or it stands within them"
        else:
            carrying = {
                file: with_instruction(template, layout, instruction, args)
                for file, template in templates.items()
            }
            if _renders_alike(args, folder, carrying, instruction, environment, tokenizer):
                templates = carrying
            else:
                reason = f"{type(environment).__name__} lays some questions out in another way"
    for file, template in templates.items():
        if file.read_text(encoding="utf-8") != template:
            write_atomic(file, template)
    return layout, reason


def _renders_alike(
    args: Mapping[str, Any],
    folder: Path,
    carrying: Mapping[Path, str],
    instruction: str,
    environment: TaskEnvironment,
    tokenizer: Any,
) -> bool:
    """Return whether these templates render a question by itself to the evaluated tokens."""
    from jinja2.exceptions import TemplateError

    from cotune.policy.codec import HFCodec

    before = tokenizer.chat_template
    default = carrying.get(folder / "chat_template.jinja", "")
    templates = {
        file.stem: template for file, template in carrying.items() if file.parent != folder
    }
    tokenizer.chat_template = {"default": default, **templates} if templates else default
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
    except TemplateError:  # the model's own template refuses such a conversation
        return False
    finally:
        tokenizer.chat_template = before
