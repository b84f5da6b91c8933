"""A Hugging Face tokenizer as a codec, and checks of its chat template before anything is trained or written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from transformers import GenerationConfig, PreTrainedTokenizerBase

from cotune.data.splits import SPLITS, warn
from cotune.environments.tool_calls import call_from, read_hermes, turn_message
from cotune.errors import ConfigError
from cotune.policy.chat_template import without_instruction
from cotune.protocols import Environment
from cotune.types import Calls, Prompt, ToolCall
from cotune.utils.text import encodable

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""For base models: the messages' texts, a line break after each."""

_PROBE = "cotune_probe"
_LONG_PROBE = " ".join([_PROBE] * 20)
_FIX = "choose a policy whose template writes tool calls, or set such a template with policy.chat_template"

_PLAIN_PROMPTS = (
    "tools: the prompts are plain texts; expected chat messages, in which tool calls and their answers "
    "can be written: give every prompt as [{'role': 'user', 'content': …}]"
)


def use_template(tokenizer: PreTrainedTokenizerBase, chat_template: str | None) -> None:
    """Replace a tokenizer's chat template: "plain", or a file's; None keeps its own."""
    if chat_template == "plain":
        # Templates write the BOS themselves.
        begin = "{{ bos_token }}" if adds_bos(tokenizer) else ""
        tokenizer.chat_template = begin + PLAIN_TEMPLATE
    elif chat_template is not None:
        tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8")


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer begins each text with its BOS."""
    bos_id = tokenizer.bos_token_id
    return bos_id is not None and bos_id in tokenizer("")["input_ids"]  # pyright: ignore[reportOperatorIssue]


class HFCodec:
    """Render with the tokenizer's chat template; encode observations without special tokens.

    Args:
        template_args: passed to the chat template, such as `enable_thinking`.

    Attributes:
        eos_id: the tokenizer's EOS.
        end_ids: the tokens that end a turn: the EOS, and those that the generation_config.json beside the
            tokenizer names. Llama 3.1 ends some calls by <|eom_id|>, Gemma 3 all turns by <end_of_turn>.
        control_tokens: the special tokens as text; in a message they could forge a turn.

    Raises:
        ConfigError: the tokenizer has no chat template, no EOS or no padding token.
    """

    _requires_template = True

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_args: Mapping[str, Any] | None = None
    ) -> None:
        required = ["chat_template"] * self._requires_template + ["eos_token", "pad_token"]
        missing = [name for name in required if getattr(tokenizer, name) is None]
        if missing:
            raise ConfigError(
                f"policy: its tokenizer has no {' and no '.join(missing)}; expected an instruction-tuned model's "
                "tokenizer, or for a base model policy.chat_template: plain"
            )
        self.tokenizer = tokenizer
        self.template_args = dict(template_args or {})
        added = tokenizer.added_tokens_decoder
        self._control_ids = frozenset(id for id, token in added.items() if token.special)
        self.control_tokens = tuple(
            sorted({str(t) for t in added.values() if t.special and str(t).strip()})
        )
        self.eos_id = cast(int, tokenizer.eos_token_id)
        self.end_ids = frozenset({self.eos_id, *_other_ends(tokenizer.name_or_path)})
        self._ends: dict[bool, int] = {}

    def defused(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return messages with control tokens in their text defused: `<|im_end|>` as `‹|im_end|>`.

        Otherwise a question could end the user's turn and speak as the policy.
        """
        return [
            {**m, "content": _without(encodable(text), self.control_tokens)}
            if isinstance(text := m.get("content"), str)
            else dict(m)
            for m in messages
        ]

    def count(self, text: str) -> int:
        """Count the tokens of a text, without those that a template adds."""
        return len(self.encode(text))

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """See `protocols.Codec`: render the prompt; control tokens in a message stay text."""
        return self._rendered(self.defused(messages), tools)

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """See `protocols.Codec`: render what the template puts after the end of a policy turn.

        The messages are rendered after a short dummy dialogue, since a template may change earlier
        turns when later ones come (drop thoughts, say); what the policy has read must not change.

        Raises:
            ConfigError: the template cannot render such messages after a turn of the policy.
        """
        tokens = self._template_tokens
        defused_messages = [
            {name: _without(encodable(text), tokens) for name, text in m.items()} for m in messages
        ]
        name = next((m["name"] for m in defused_messages if m["role"] == "tool"), "")
        dialogue = _dialogue(ToolCall(name) if name else None)
        if bool(name) not in self._ends:
            self._ends[bool(name)] = self._count_ends(dialogue, tools)
        after = self._rendered([*dialogue, *defused_messages], tools)
        ends = [i for i, token in enumerate(after) if token in self.end_ids]
        if len(ends) < self._ends[bool(name)]:
            raise ConfigError(
                "policy: its chat template leaves out a turn of the policy when messages follow it; "
                "set another with policy.chat_template"
            )
        return after[ends[self._ends[bool(name)] - 1] + 1 :]

    def read_calls(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """Read tool calls by the tokenizer's response template, else in the form of Hermes and Qwen."""
        written = self._without_end(ids)
        if tools or self._has_response_template:
            calls = self._read(ids, tools, context_ids)
        elif self._control_ids.isdisjoint(written):
            return Calls()  # the text that the caller has; decoding takes 5 ms for 4,000 tokens
        else:
            calls = Calls()
        if calls.message:
            return calls
        text = str(self.tokenizer.decode(list(written), skip_special_tokens=True))
        if not tools:
            return Calls(message={"role": "assistant", "content": text})
        return replace(calls, message=turn_message(calls, text))

    def check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Check that tool calls can be read as the chat template writes them.

        A call is rendered by the template and must be read back unchanged; a tool's answer must be rendered after it.

        Raises:
            ConfigError: the template does not offer tools, or drops calls or answers, or its calls cannot be read.
        """
        prompt = self.render([{"role": "user", "content": _PROBE}], tools)
        prompt_text = self.decode(prompt)
        if any(tool["function"]["name"] not in prompt_text for tool in tools):
            raise ConfigError(
                "policy: its chat template does not show tools: the model was trained without, or "
                f"is given them in another way; {_FIX}"
            )
        call = _probe_call(tools[0])
        dialogue = _dialogue(call)
        turn = self._rendered(dialogue, tools, opens_turn=False)
        self._count_ends(dialogue, tools)
        begun = common_prefix(prompt, turn)
        last = max(i for i, token in enumerate(turn) if token in self.end_ids)
        written = turn[begun : last + 1]
        if self._read(written, tools, turn[:begun]).calls != (call,):
            text = " ".join(self.decode(written).split())[:80]
            raise ConfigError(
                f"policy: its chat template writes a tool call as {text!r}, which cannot be read: neither as Hermes "
                f"and Qwen write it, nor in a form that an installed TRL knows; {_FIX}"
            )
        for message in ({"role": "tool", "name": call.name}, {"role": "user"}):
            following = self.decode(self.render_next([{**message, "content": _LONG_PROBE}], tools))
            if _LONG_PROBE not in following:
                raise ConfigError(
                    f"policy: its chat template drops a {message['role']} message after a turn of "
                    f"the policy, or changes it; {_FIX}"
                )

    @property
    def _has_response_template(self) -> bool:
        return getattr(self.tokenizer, "response_template", None) is not None

    def _read(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """Read the calls of a turn with the response template, if there is one."""
        if not self._has_response_template:
            return read_hermes(self.decode(self._without_end(ids)))
        try:
            parsed = cast(Any, self.tokenizer).parse_response(
                list(ids), prefix=list(context_ids), tools=list(tools)
            )
            message = dict(parsed or {})
            calls = tuple(
                call_from(call.get("function", call)) for call in message.get("tool_calls") or []
            )
            if message:
                content = str(message.get("content") or "")
                message["content"] = content.removesuffix(str(self.tokenizer.eos_token))
            return Calls(calls, text=str(message.get("content", "")).strip(), message=message)
        # Model output is data: no exception from parsing it may stop a run.
        except Exception as error:  # noqa: BLE001
            return Calls(error=" ".join(f"a tool call cannot be read: {error}".split())[:120])

    def _without_end(self, ids: Sequence[int]) -> Sequence[int]:
        return ids[:-1] if ids and ids[-1] in self.end_ids else ids

    def _count_ends(
        self, dialogue: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> int:
        """Count the ends of turns in a dialogue; ConfigError if it does not end with one."""
        rendered = self._rendered(dialogue, tools, opens_turn=False)
        places = [i for i, token in enumerate(rendered) if token in self.end_ids]
        # Templates write a line break after it; that belongs to what follows.
        if not places or self.decode(rendered[places[-1] + 1 :]).strip():
            raise ConfigError(
                f"policy: its chat template ends a turn of the policy by {self.decode(rendered[-8:])!r}, but "
                f"its tokenizer's eos_token is {self.tokenizer.eos_token!r}; expected that token, or another of "
                "eos_token_id in its generation_config.json, at the end of every turn: add the template's there "
                f"if the policy was trained on it, or {_FIX}"
            )
        return len(places)

    def foreign_end(self) -> str:
        """Return the control token at the end of the template's turns if it ends no turn here, else ""."""
        try:
            rendered = self._rendered(_dialogue(None), (), opens_turn=False)
        except ConfigError:  # no turns of the policy
            return ""
        text = self.decode(rendered).rstrip()
        end = next((token for token in self.control_tokens if text.endswith(token)), "")
        is_end = end and self.tokenizer.convert_tokens_to_ids(end) in self.end_ids
        return "" if is_end else end

    def encode(self, text: str) -> list[int]:
        # Control tokens in a passage stay text: they must not end the policy's turn.
        encoded = self.tokenizer(
            encodable(text), add_special_tokens=False, split_special_tokens=True
        )
        return list(encoded["input_ids"])  # pyright: ignore[reportArgumentType]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def text(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        opens_turn: bool = True,
        before: str = "",
    ) -> str:
        """Return messages as the chat template writes them, not defused; ConfigError if it fails.

        Args:
            opens_turn: begin the policy's turn after them.
            before: is put before the template, such as a macro.
        """
        tool_schemas: Any = [dict(tool) for tool in tools] or None
        # An exported policy's template carries an instruction; the messages bring theirs.
        template = before + without_instruction(
            self.tokenizer.get_chat_template(tools=tool_schemas)
        )
        try:
            return cast(Any, self.tokenizer).apply_chat_template(
                [dict(m) for m in messages],
                chat_template=template,
                tools=tool_schemas,
                add_generation_prompt=opens_turn,
                tokenize=False,
                **self.template_args,
            )
        # A template is a program of others: it may as well divide by zero.
        except Exception as error:
            roles = ", ".join(m["role"] for m in messages)
            reason = " ".join(str(error).split())[:120]
            system = (
                ", or leave out system messages (instruction.role: user, and instruction.system: replace "
                "for those of the data)"
            )
            raise ConfigError(
                f"policy: its chat template cannot render the roles {roles} ({reason}); give another "
                f"by policy.chat_template{system if 'system' in roles else ''}"
            ) from error

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        opens_turn: bool = True,
    ) -> list[int]:
        text = self.text(messages, tools, opens_turn)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])  # pyright: ignore[reportArgumentType]

    @cached_property
    def _template_tokens(self) -> tuple[str, ...]:
        """The special tokens, and added tokens that the template writes."""
        template = str(self.tokenizer.chat_template)
        added = self.tokenizer.added_tokens_decoder.values()
        return tuple(str(t) for t in added if str(t).strip() and (t.special or str(t) in template))


class PlainCodec(HFCodec):
    """Feed prompts that are plain texts as they are, like TRL: without a chat template.

    Control tokens in them are meant: the data may have rendered a chat template itself.
    """

    _requires_template = False

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """See `protocols.Codec`; the prompt is one message."""
        (message,) = messages
        encoded = self.tokenizer(text=encodable(message["content"]))
        return list(encoded["input_ids"])  # pyright: ignore[reportArgumentType]

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Raise ConfigError: what an environment says needs chat messages."""
        raise ConfigError(_PLAIN_PROMPTS)

    def check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Raise ConfigError: calls and answers need chat messages."""
        raise ConfigError(_PLAIN_PROMPTS)

    def foreign_end(self) -> str:
        return ""

    @property
    def _has_response_template(self) -> bool:
        return False


def _without(text: str, tokens: Sequence[str]) -> str:
    """Replace the first character of each of these tokens that appears in the text."""
    for token in tokens:
        if token in text:
            text = text.replace(token, f"‹{token[1:]}")
    return text


def _dialogue(call: ToolCall | None) -> list[dict[str, Any]]:
    """Return a question and a turn with a call or a "." (some templates refuse an empty one)."""
    turn: dict[str, Any] = {"role": "assistant", "content": "" if call else "."}
    if call is not None:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        turn["tool_calls"] = [{"type": "function", "function": function}]
    return [{"role": "user", "content": _PROBE}, turn]


def _probe_call(tool: Mapping[str, Any]) -> ToolCall:
    """Return a call of a tool with a value for each text, number and boolean parameter."""
    values = {"string": _PROBE, "integer": 7, "number": 0.5, "boolean": True}
    properties = tool["function"].get("parameters", {}).get("properties", {})
    arguments = {
        name: values[schema["type"]]
        for name, schema in properties.items()
        if schema.get("type") in ("string", "integer", "number", "boolean") and "enum" not in schema
    }
    return ToolCall(tool["function"]["name"], arguments)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _other_ends(path: str) -> list[int]:
    """Return what a policy's generation_config.json names as EOS; nothing if there is none that can be read."""
    try:
        ends = GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id
    except (OSError, TypeError, ValueError):
        return []
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


# ---- checks before anything is trained or written

_PROBED = 3  # tasks of each split
_HINT = "Think of what was asked."
_ON_DAY = "{{%- macro strftime_now(format) -%}}{}{{%- endmacro -%}}"
_ANOTHER = "give another by policy.chat_template"


def check_turns(environment: Environment, codec: HFCodec) -> None:
    """Check that tool calls can be read, if the environment has tools; else warn if turns may not end.

    Without a response template the tokenizer gets the one that TRL has for its chat template, keeps it and saves it.

    Raises:
        ConfigError: the policy's chat template cannot call tools.
    """
    tokenizer: Any = codec.tokenizer
    if environment.tools:
        if getattr(tokenizer, "response_template", None) is None:
            _add_response_template(tokenizer)
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


def _add_response_template(tokenizer: Any) -> None:
    """Give a tokenizer TRL's response template for its chat template, if there is one."""
    try:
        from trl.chat_template_utils import add_response_schema

        add_response_schema(tokenizer)
    except (ImportError, ValueError):
        return


def check_template(environment: Environment, codec: HFCodec, instruction: str) -> None:
    """Render prompts of each split with and without a hint; warn of what a template does unasked.

    Raises:
        ConfigError: the chat template cannot call the environment's tools, or leaves out or changes a message of a
            prompt.
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
    tools = environment.tools
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
    templates = str(codec.tokenizer.chat_template)
    for name in codec.template_args:
        if not re.search(rf"\b{re.escape(name)}\b", templates):
            warn(
                f"policy.template_args: the chat template has no argument {name!r}; correct the name"
            )
