"""A chat template that carries an instruction: what a server renders is what was evaluated.

A preamble before the model's own template rewrites `messages` as `PromptFormat.messages` lays them out; the model's own
template follows unchanged and can be taken out again. The instruction stands in the preamble as an escaped Jinja string
literal, so that no text of a model is ever read as a template.
"""

import re
from collections.abc import Mapping, Sequence
from typing import cast

from cotune.environments.base import PromptFormat
from cotune.errors import ConfigError

_BEGIN = "{#- cotune 1: the instruction stands before the model's own template -#}\n"
# No minus at its end: it would strip white space that the model's own template starts with. A tag
# swallows the line break.
_END = "{#- cotune: the model's own template #}\n"
_SPECIAL = re.compile(r"[^A-Za-z0-9 ,.;:!?()-]")

# The loop runs over a range and contents have helper names: vLLM and SGLang look for a loop over
# `message.content` to find out whether a template takes lists of parts, and must find the loop of
# the model's own template, not ours. A list of parts stays one, whose texts become a single last part.
_TEXT = """\
{%- set cotune_parts = cotune_message["content"] or "" -%}
{%- set cotune_text = cotune_parts if cotune_parts is string else cotune_parts
    | selectattr("type", "equalto", "text") | map(attribute="text") | join -%}
{%- set cotune_text = CHANGED -%}
{%- set cotune_content = cotune_text if cotune_parts is string else (cotune_parts
    | rejectattr("type", "equalto", "text") | list) + [{"type": "text", "text": cotune_text}] -%}
"""
_USER = """\
{%- set cotune = namespace(messages=[], told=false) -%}
{%- for cotune_i in range(messages | length) -%}
{%- set cotune_message = messages[cotune_i] -%}
{%- if cotune_message["role"] == "user" and not cotune.told -%}
{%- set cotune.told = true -%}
TEXT
{%- set cotune_message = dict(cotune_message, content=cotune_content) -%}
{%- endif -%}
{%- set cotune.messages = cotune.messages + [cotune_message] -%}
{%- endfor -%}
{%- set messages = cotune.messages -%}
"""
_SYSTEM = """\
{%- if cotune_instruction -%}
{%- if messages and messages[0]["role"] == "system" -%}
{%- set cotune_message = messages[0] -%}
TEXT
{%- set messages = [dict(cotune_message, content=cotune_content)] + messages[1:] -%}
{%- else -%}
{%- set messages = [{"role": "system", "content": cotune_instruction}] + messages -%}
{%- endif -%}
{%- endif -%}
"""

_WITHOUT_SYSTEM = (
    '{%- set messages = messages | rejectattr("role", "equalto", "system") | list -%}\n'
)


def with_instruction(
    template: str,
    prompt_format: PromptFormat,
    instruction: str,
    template_args: Mapping[str, object] | None = None,
) -> str:
    """Return a chat template that renders a question as trained and evaluated under an instruction.

    The first user message, or the system message, is laid out as `prompt_format` says; later messages do not change.
    The caller may pass `instruction="…"` for another one and `instruction=""` for none.

    Args:
        template: the model's own template; if it already carries an instruction, only the part without it is used.
        template_args: default arguments of the model's own template, such as `enable_thinking`; the caller may pass
            others.

    Raises:
        ConfigError: see `without_instruction`.
        TypeError: a value of `template_args` that is not a JSON value.
    """
    plain_template = without_instruction(template)
    lines = [_BEGIN]
    for name, value in (template_args or {}).items():
        if name.isidentifier():  # no template can read any other
            lines.append(
                f"{{%- if {name} is not defined -%}}"
                f"{{%- set {name} = {literal(value)} -%}}{{%- endif -%}}\n"
            )
    lines.append(
        "{%- set cotune_instruction = instruction if instruction is defined and instruction is not "
        f"none else {literal(instruction)} -%}}\n"
    )
    if prompt_format.system == "replace":
        lines.append(_WITHOUT_SYSTEM)
    if prompt_format.role == "system":
        joined = 'cotune_text ~ "\\n\\n" ~ cotune_instruction'
        lines.append(_SYSTEM.replace("TEXT\n", _TEXT.replace("CHANGED", joined)))
    around = prompt_format.question_prefix or prompt_format.question_suffix
    if prompt_format.role == "user" or around:
        lines.append(_USER.replace("TEXT\n", _TEXT.replace("CHANGED", _wrapped(prompt_format))))
    return "".join(lines) + _END + plain_template


def without_instruction(template: str) -> str:
    """Return the model's own template; one that carries no instruction is returned unchanged.

    Raises:
        ConfigError: the mark between instruction and own template is missing.
    """
    if not template.startswith(_BEGIN):
        return template
    _, mark, plain_template = template.partition(_END)
    if not mark:
        raise ConfigError(
            "the chat template carries an instruction, but the mark before the model's own template "
            f"is missing; restore the line {_END.strip()}, or use the model's own template"
        )
    return plain_template


def own_templates(templates: str | dict[str, str] | None) -> str | dict[str, str] | None:
    """Apply `without_instruction` to a tokenizer's `chat_template`: one, several by name, or none."""
    if isinstance(templates, dict):
        return {name: without_instruction(template) for name, template in templates.items()}
    return None if templates is None else without_instruction(templates)


def literal(value: object) -> str:
    """Write a JSON value as a Jinja expression whose text cannot become Jinja syntax; TypeError for another value."""
    if isinstance(value, str):
        return '"' + _SPECIAL.sub(_escape, value) + '"'
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in items) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(literal, cast("Sequence[object]", value))) + "]"
    raise TypeError(
        f"a chat template's argument is a {type(value).__name__}; expected a JSON value"
    )


def _escape(match: re.Match[str]) -> str:
    r"""Return a character as `\uXXXX`, which all servers' template engines read, or `\UXXXXXXXX` beyond it."""
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _wrapped(prompt_format: PromptFormat) -> str:
    """Return the user's message made from `cotune_text`, as a Jinja expression."""
    prefix = prompt_format.question_prefix
    suffix = prompt_format.question_suffix
    question = f"{literal(prefix)} ~ cotune_text" if prefix else "cotune_text"
    if suffix:
        question = f"{question} ~ {literal(suffix)}"
    if prompt_format.role == "system":
        return question
    parts = ["cotune_instruction", question]
    if prompt_format.placement == "after":
        parts.reverse()
    return f"[{', '.join(parts)}] | select | join({literal(prompt_format.separator)})"
