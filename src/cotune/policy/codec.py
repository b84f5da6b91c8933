"""A Hugging Face tokenizer as a codec."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from cotune.environments.tool_calls import READERS, Reader, call_from, turn_message
from cotune.errors import ConfigError
from cotune.policy.chat_template import without_instruction
from cotune.types import Calls, ToolCall
from cotune.utils.text import encodable

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
"""For base models: the messages' texts, a line break after each."""

_PROBE = "cotune_probe"
_FIX = (
    "choose a policy whose template writes tool calls, or set such a template with "
    "policy.chat_template"
)

_PLAIN_PROMPTS = (
    "tools: the prompts are plain texts; expected chat messages, in which tool calls and their answers "
    "can be written: give every prompt as [{'role': 'user', 'content': …}]"
)


def use_template(tokenizer: PreTrainedTokenizerBase, chat_template: str | None) -> None:
    """Replace a tokenizer's chat template: "plain", or a file's; None keeps its own.

    Raises:
        ConfigError: no such file, or not text.
    """
    if chat_template is None:
        return
    if chat_template == "plain":
        tokenizer.chat_template = PLAIN_TEMPLATE
        return
    try:
        tokenizer.chat_template = Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"policy.chat_template: cannot read {chat_template} ({error}); expected plain, or the "
            "path of a Jinja file"
        ) from error


class HFCodec:
    """Render with the tokenizer's chat template; encode observations without special tokens.

    Args:
        tokenizer: the policy's.
        template_args: passed to the chat template, such as `enable_thinking`.

    Raises:
        ConfigError: the tokenizer has no chat template, no EOS or no padding token.
    """

    _requires_template = True

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        missing = [
            name
            for name, value in (
                ("chat_template", tokenizer.chat_template),
                ("eos_token", tokenizer.eos_token_id),
                ("pad_token", tokenizer.pad_token_id),
            )
            if value is None and (self._requires_template or name != "chat_template")
        ]
        if missing:
            raise ConfigError(
                f"policy: its tokenizer has no {' and no '.join(missing)}; "
                "expected an instruction-tuned model's tokenizer, or for a base model "
                "policy.chat_template: plain"
            )
        self._tokenizer = tokenizer
        self._template_args = dict(template_args or {})
        self._reader: Reader | None = None
        self._ends: dict[bool, int] = {}
        self._with_ids = False  # whether calls and answers are given ids

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The tokenizer's special tokens as text; in a message they could forge a turn."""
        return self._special

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(id for id, token in added if token.special)

    @cached_property
    def _special(self) -> tuple[str, ...]:
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple(sorted({str(t) for t in added if t.special and str(t).strip()}))

    def defused(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Return messages with control tokens in their text defused: `<|im_end|>` as `‹|im_end|>`.

        Otherwise a question could end the user's turn and speak as the policy.
        """
        tokens = self.control_tokens
        return [
            {**m, "content": _without(encodable(text), tokens)}
            if isinstance(text := m.get("content"), str)
            else dict(m)
            for m in messages
        ]

    def count(self, text: str) -> int:
        """Count the tokens of a text, without those that a template adds."""
        return len(self.encode(text))

    @property
    def eos_id(self) -> int:
        return self._eos_id

    @cached_property
    def _eos_id(self) -> int:
        return int(self._tokenizer.eos_token_id)  # pyright: ignore[reportArgumentType]

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """See `protocols.Codec`: render the prompt; control tokens in a message stay text."""
        return self._rendered(self.defused(messages), tools)

    def render_next(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """See `protocols.Codec`: render what the template puts after the EOS of a policy turn.

        The messages are rendered after a short dummy dialogue, since a template may change earlier
        turns when later ones come (drop thoughts, say); what the policy has read must not change.

        Raises:
            ConfigError: the template cannot render such messages after a turn of the policy.
        """
        kept = [{k: self._neutralised(text) for k, text in m.items()} for m in messages]
        name = next((m["name"] for m in kept if m["role"] == "tool"), "")
        if self._with_ids:
            answers = (m for m in kept if m["role"] == "tool")
            for number, message in enumerate(answers, 1):
                message["tool_call_id"] = _call_id(number)
        dialogue = _dialogue(ToolCall(name) if name else None, self._with_ids)
        if bool(name) not in self._ends:
            self._ends[bool(name)] = self._closing(dialogue, tools)
        after = self._rendered([*dialogue, *kept], tools)
        ends = [i for i, token in enumerate(after) if token == self.eos_id]
        if len(ends) < self._ends[bool(name)]:
            raise ConfigError(
                "policy: its chat template leaves out a turn of the policy when messages follow it; "
                "set another with policy.chat_template"
            )
        return after[ends[self._ends[bool(name)] - 1] + 1 :]

    def read_calls(
        self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]], context_ids: Sequence[int]
    ) -> Calls:
        """Read tool calls by the tokenizer's response template, else in one of the known forms.

        Raises:
            ConfigError: the chat template's calls can be read by none of them.
        """
        written = ids[:-1] if ids and ids[-1] == self.eos_id else ids
        if self._has_response_template:
            calls = self._read(ids, tools, context_ids, None)
        elif tools:
            if self._reader is None:
                self.check_tools(tools)
            calls = self._read(ids, tools, context_ids, self._reader)
        elif self._control_ids.isdisjoint(written):
            return Calls()  # the text that the caller has; decoding takes 5 ms for 4,000 tokens
        else:
            calls = Calls()
        if calls.message:
            return calls
        text = str(self._tokenizer.decode(list(written), skip_special_tokens=True))
        if not tools:
            return Calls(message={"role": "assistant", "content": text})
        return replace(calls, message=turn_message(calls, text))

    def check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Find out how to read the chat template's tool calls.

        A call is rendered by the template and must be read back unchanged; a tool's answer
        must be rendered after it.

        Raises:
            ConfigError: the template does not offer tools, or drops calls or answers, or its calls
                cannot be read.
        """
        prompt = self.render([{"role": "user", "content": _PROBE}], tools)
        shown = self.decode(prompt)
        if any(tool["function"]["name"] not in shown for tool in tools):
            raise ConfigError(
                "policy: its chat template does not show tools: the model was trained without, or "
                f"is given them in another way; {_FIX}"
            )
        call = _probe_call(tools[0])
        dialogue, turn = self._probe_turn(call, tools)
        self._closing(dialogue, tools)
        begun = common_prefix(prompt, turn)
        written = turn[begun : len(turn) - turn[::-1].index(self.eos_id)]
        self._reader = None
        readers = (None,) if self._has_response_template else READERS
        for reader in readers:
            if self._read(written, tools, turn[:begun], reader).calls == (call,):
                self._reader = reader
                break
        else:
            said = " ".join(self.decode(written).split())[:80]
            raise ConfigError(
                f"policy: its chat template writes a tool call as {said!r}, which cannot be read; "
                f"{_FIX}"
            )
        for message in ({"role": "tool", "name": call.name}, {"role": "user"}):
            following = self.decode(self.render_next([{**message, "content": _PROBE}], tools))
            if _PROBE not in following:
                raise ConfigError(
                    f"policy: its chat template drops a {message['role']} message after a turn of "
                    f"the policy; {_FIX}"
                )

    def _probe_turn(
        self, call: ToolCall, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[int]]:
        """Return a dialogue that ends with a call, and its tokens; add call ids if required."""
        self._with_ids = False
        dialogue = _dialogue(call)
        try:
            return dialogue, self._rendered(dialogue, tools, opens_turn=False)
        except ConfigError:
            dialogue = _dialogue(call, with_id=True)
            try:
                turn = self._rendered(dialogue, tools, opens_turn=False)
            except ConfigError:
                turn = None
            if turn is None:
                raise  # the error of the call without ids
        self._with_ids = True
        return dialogue, turn

    @property
    def _has_response_template(self) -> bool:
        return getattr(self._tokenizer, "response_template", None) is not None

    def _read(
        self,
        ids: Sequence[int],
        tools: Sequence[Mapping[str, Any]],
        context_ids: Sequence[int],
        reader: Reader | None,
    ) -> Calls:
        """Read the calls of a turn with `reader`, or with the response template if it is None."""
        if reader is not None:
            written = list(ids[:-1]) if ids and ids[-1] == self.eos_id else list(ids)
            return reader(self.decode(written), tools)
        try:
            parsed = cast(Any, self._tokenizer).parse_response(
                list(ids), prefix=list(context_ids), tools=list(tools)
            )
            message = dict(parsed or {})
            calls = tuple(
                call_from(call.get("function", call)) for call in message.get("tool_calls") or []
            )
            if message:
                content = str(message.get("content") or "")
                message["content"] = content.removesuffix(str(self._tokenizer.eos_token))
            return Calls(calls, said=str(message.get("content", "")).strip(), message=message)
        # Model output is data: no exception from parsing it may stop a run.
        except (
            ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError
        ) as error:  # fmt: skip
            return Calls(error=" ".join(f"a tool call cannot be read: {error}".split())[:120])

    def _closing(
        self, dialogue: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> int:
        """Count the EOS tokens of a dialogue; ConfigError if it does not end with one."""
        rendered = self._rendered(dialogue, tools, opens_turn=False)
        count = rendered.count(self.eos_id)
        # Templates write a line break after it; that belongs to what follows.
        after = rendered[len(rendered) - rendered[::-1].index(self.eos_id) :] if count else rendered
        if not count or self.decode(after).strip():
            end, eos = self.decode(rendered[-8:]), self._tokenizer.eos_token
            own = self._turn_end(tools)
            fix = f"save the policy's tokenizer with eos_token {own!r}, or {_FIX}" if own else _FIX
            raise ConfigError(
                f"policy: its chat template ends a turn of the policy by {end!r}, but its tokenizer's "
                f"eos_token is {eos!r}; expected that token at the end of every turn: {fix}"
            )
        return count

    def foreign_end(self) -> str:
        """Return the control token that ends a turn of the chat template if it is not the EOS, else ""."""
        try:
            end = self._turn_end(())
        except ConfigError:  # no turns of the policy
            return ""
        return "" if end == str(self._tokenizer.eos_token) else end

    def _turn_end(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Return the control token that ends turns both with and without a call, or ""."""
        ends: set[str] = set()
        for call in (_probe_call(tools[0]) if tools else None, None):
            turn = self._rendered(_dialogue(call, self._with_ids), tools, opens_turn=False)
            said = self.decode(turn).rstrip()
            ends.add(next((t for t in self.control_tokens if said.endswith(t)), ""))
        return ends.pop() if len(ends) == 1 else ""

    def encode(self, text: str) -> list[int]:
        # Control tokens in a passage stay text: they must not end the policy's turn.
        encoded = self._tokenizer(
            encodable(text), add_special_tokens=False, split_special_tokens=True
        )
        return list(encoded["input_ids"])  # pyright: ignore[reportArgumentType]

    def decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return str(text)

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        opens_turn: bool = True,
    ) -> list[int]:
        offered: Any = [dict(tool) for tool in tools] or None
        # An exported policy's template carries an instruction; the messages bring theirs.
        template = without_instruction(self._tokenizer.get_chat_template(tools=offered))
        try:
            rendered = cast(Any, self._tokenizer).apply_chat_template(
                [dict(m) for m in messages],
                chat_template=template,
                tools=offered,
                add_generation_prompt=opens_turn,
                tokenize=True,
                return_dict=False,
                **self._template_args,
            )
        # TypeError: a template that joins text with something else.
        except (TemplateError, TypeError) as error:
            roles = ", ".join(m["role"] for m in messages)
            system = ", or change instruction.role" if "system" in roles else ""
            reason = " ".join(str(error).split())[:120]
            raise ConfigError(
                f"policy: its chat template cannot render the roles {roles} ({reason}); give another "
                f"by policy.chat_template{system}"
            ) from error
        return [int(token) for token in rendered]  # pyright: ignore[reportArgumentType]

    def _neutralised(self, text: str) -> str:
        """Break up special tokens, and added tokens that the template writes, in a text."""
        return _without(encodable(text), self._spelt)

    @cached_property
    def _spelt(self) -> tuple[str, ...]:
        template = str(self._tokenizer.chat_template)
        added = self._tokenizer.added_tokens_decoder.values()
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
        encoded = self._tokenizer(text=encodable(message["content"]))
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


def _call_id(number: int) -> str:
    """Return an id of nine letters and digits, as Mistral's templates require."""
    return f"call{number:05d}"


def _dialogue(call: ToolCall | None, with_id: bool = False) -> list[dict[str, Any]]:
    """Return a question and a turn with a call or a "." (some templates refuse an empty one)."""
    turn: dict[str, Any] = {"role": "assistant", "content": "" if call else "."}
    if call is not None:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        given = {"id": _call_id(1)} if with_id else {}
        turn["tool_calls"] = [{"type": "function", **given, "function": function}]
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
