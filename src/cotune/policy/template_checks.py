"""Checks of a policy's chat template before anything is trained or written: what it does with prompts and turns."""

import re
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

from cotune.data.splits import SPLITS, warn
from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec, PlainCodec, adds_bos
from cotune.protocols import Environment
from cotune.types import Prompt

_PROBED = 3  # tasks of each split
# Real templates take a thousandth of it. There is no limit while a run trains, since the time of its other threads counts.
_PROBE_SECONDS = 5.0
_HINT = "Think of what was asked."
_ON_DAY = "{{%- macro strftime_now(format) -%}}{}{{%- endmacro -%}}"
_ANOTHER = "give another by policy.chat_template"


def check_turns(environment: Environment, codec: HFCodec) -> None:
    """Find out how to read tool calls, if the environment has tools; else warn if turns may not end.

    A response template that TRL has for the chat template is tried first, as TRL does; the tokenizer then
    keeps and saves it.

    Raises:
        ConfigError: the policy's chat template cannot call tools, or takes too long.
    """
    tokenizer: Any = codec.tokenizer
    has_own = getattr(tokenizer, "response_template", None) is not None
    # Not within the limit: it may import TRL, which takes seconds.
    uses_trl = bool(environment.tools) and not has_own and _add_response_template(tokenizer)
    with _time_limit(_PROBE_SECONDS):
        if uses_trl:
            try:
                codec.check_tools(environment.tools)
                return
            except ConfigError:
                tokenizer.response_template = None
        if environment.tools:
            codec.check_tools(environment.tools)
            return
        end = codec.foreign_end()
    # An error only with tools: a base model may end its text by the EOS under any template.
    if end and not environment.stop:
        warn(
            f"policy: its chat template ends a turn by {end!r}, but its tokenizer's eos_token is "
            f"{tokenizer.eos_token!r}, at which rollouts end; if it was trained on that template, add {end!r} to "
            "eos_token_id in its generation_config.json, or every rollout goes on to limits.turn_tokens"
        )


def _add_response_template(tokenizer: Any) -> bool:
    """Give a tokenizer TRL's response template for its chat template; False if there is none."""
    try:
        from trl.chat_template_utils import add_response_schema

        add_response_schema(tokenizer)
    except (ImportError, ValueError):
        return False
    return True


def check_template(environment: Environment, codec: HFCodec, instruction: str) -> None:
    """Render prompts of each split with and without a hint; warn of what a template does unasked.

    Raises:
        ConfigError: the chat template cannot call the environment's tools; or it leaves out or changes a
            message of a prompt, or writes it differently each time, or takes too long.
    """
    check_turns(environment, codec)
    if isinstance(codec, PlainCodec):
        return
    prompts = [
        codec.defused(environment.messages(task, prompt))
        for prompt in (Prompt(instruction), Prompt(instruction, _HINT))
        for split in SPLITS
        for task in environment.tasks(split)[:_PROBED]
    ]
    with _time_limit(_PROBE_SECONDS):
        _check_prompts(prompts, environment.tools, codec)


def _check_prompts(
    prompts: Sequence[list[dict[str, str]]], tools: Sequence[Mapping[str, Any]], codec: HFCodec
) -> None:
    texts = [codec.text(messages, tools) for messages in prompts]
    for messages, text in zip(prompts, texts, strict=True):
        for message in messages:
            # Templates drop the thoughts of earlier turns of the policy.
            if message["role"] != "assistant" and message["content"].strip() not in text:
                start = " ".join(message["content"].split())[:40]
                raise ConfigError(
                    f"policy: its chat template leaves out the {message['role']} message {start!r}… of a "
                    f"prompt, or changes it; {_ANOTHER}"
                    + (", or set instruction.role: user" * (message["role"] == "system"))
                )
    if [codec.text(messages, tools) for messages in prompts] != texts:
        raise ConfigError(
            f"policy: its chat template writes the same prompt differently each time; {_ANOTHER}"
        )
    today, tomorrow = (
        [codec.text(messages, tools, before=_ON_DAY.format(day)) for messages in prompts]
        for day in (1, 2)
    )
    if today != tomorrow:
        warn(
            "policy: its chat template writes the date of today, so prompts change at midnight, and a "
            "resume on another day is not exact; set the date by policy.template_args, such as "
            f"{{date_string: 26 Jul 2026}}, or {_ANOTHER}"
        )
    bos = str(codec.tokenizer.bos_token)
    if adds_bos(codec.tokenizer) and not all(text.startswith(bos) for text in texts):
        warn(
            f"policy: its tokenizer begins texts with {bos!r}, but its chat template does not write it; if the "
            f"policy was trained with it, {_ANOTHER}"
        )
    templates = str(codec.tokenizer.chat_template)
    for name in codec.template_args:
        if not re.search(rf"\b{re.escape(name)}\b", templates):
            warn(
                f"policy.template_args: the chat template has no argument {name!r}; correct the name"
            )


@contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """Raise TimeoutError in code that computes for longer than `seconds`, of this process's processor time.

    Does nothing in a thread, which cannot handle signals.
    """
    if current_thread() is not main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    # Again and again, as the code may catch the first one: Jinja does while it compiles.
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
