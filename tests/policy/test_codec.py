"""A Hugging Face tokenizer as a codec."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cotune.data.splits import warn
from cotune.environments.base import PromptFormat, SingleTurnEnvironment, TaskEnvironment
from cotune.errors import ConfigError
from cotune.policy.codec import (
    PLAIN_TEMPLATE,
    HFCodec,
    PlainCodec,
    check_template,
    check_turns,
    use_template,
)
from cotune.policy.local_policy import local_coordinator
from cotune.policy.policy_files import policy_path
from cotune.rollout.coordinator import RolloutSettings
from cotune.types import Calls, Task, ToolCall
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from tests.helpers import raises_line, tool_schema
from tests.policy.bigram import save
from tests.policy.tiny import byte_tokenizer, models_template, tiny_tokenizer

TINY = HFCodec(tiny_tokenizer())
BUNDLED = HFCodec(AutoTokenizer.from_pretrained(policy_path("bundled:geo")))


def test_a_prompt_is_the_chat_template_up_to_the_policys_turn() -> None:
    ids = TINY.render([{"role": "user", "content": "ab?"}])
    assert TINY.decode(ids) == "<|im_start|>ab?<|im_end|><|im_start|>"
    assert ids.count(TINY.eos_id) == 1


@pytest.mark.parametrize("codec", [TINY, BUNDLED], ids=["tiny", "bundled"])
def test_no_observation_can_end_the_policys_turn(codec: HFCodec) -> None:
    control = codec.decode([codec.eos_id])
    ids = codec.encode(f"a{control}b")
    assert codec.eos_id not in ids
    assert codec.encode(f"a{control}b")[0] == codec.encode("a")[0]


@pytest.mark.parametrize("codec", [TINY, BUNDLED], ids=["tiny", "bundled"])
def test_no_message_of_a_prompt_can_end_the_users_turn(codec: HFCodec) -> None:
    forged = "".join(codec.control_tokens)
    plain_ids = codec.render([{"role": "user", "content": "a b"}])
    forged_ids = codec.render([{"role": "user", "content": f"a {forged} b"}])
    tokenizer = codec.tokenizer
    # What the tiny tokenizer has no token for is unknown, and that is a special one.
    control = {tokenizer.convert_tokens_to_ids(t) for t in codec.control_tokens}
    control -= {tokenizer.unk_token_id}
    assert [i for i in forged_ids if i in control] == [i for i in plain_ids if i in control]


def test_half_a_character_in_an_observation_is_no_error() -> None:
    assert BUNDLED.encode("a\ud83db") == BUNDLED.encode("a?b")
    message = {"role": "user", "content": "a\ud83db"}
    assert BUNDLED.render_next([message]) == BUNDLED.render_next([{**message, "content": "a?b"}])
    assert BUNDLED.render([message]) == BUNDLED.render([{**message, "content": "a?b"}])


def test_a_plain_prompt_needs_no_chat_template_and_offers_no_tools() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    codec = PlainCodec(tokenizer)
    ids = codec.render([{"role": "user", "content": "<|im_start|>ab?<|im_end|>"}])
    assert codec.decode(ids) == "<|im_start|>ab?<|im_end|>"
    assert ids.count(codec.eos_id) == 1
    assert codec.foreign_end() == ""
    with pytest.raises(ConfigError, match="plain texts; expected chat messages"):
        codec.check_tools([])
    # As a chat template, its lack is named.
    bare = tiny_tokenizer()
    bare.chat_template = None
    bare.pad_token = None
    with pytest.raises(ConfigError, match="no chat_template and no pad_token"):
        HFCodec(bare)


OWN_TEMPLATES = Path(__file__).parent / "chat_templates"
"""Families that TRL ships no template of, or another; as short as their structure allows."""
CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
QWEN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
LLAMA = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)
GPT = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>")

TOOLS = tuple(
    tool_schema(
        name,
        f"The {name}.",
        text={"type": "string", "description": "What to read."},
        times={"type": "integer", "description": "How often."},
    )
    for name in ("look_up", "repeat")
)
CALL = ToolCall("look_up", {"text": "a 7", "times": 3})


@dataclass(frozen=True)
class Family:
    """A chat template and how its models write a call and a result; `keeps` their own turns."""

    template: str
    special: tuple[str, ...]
    eos: str
    call: str
    added: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    keeps: bool = True


HERMES_CALL = (
    '<tool_call>\n{"name": "look_up", "arguments": {"text": "a 7", "times": 3}}\n</tool_call>'
)
LLAMA_CALL = '{"name": "look_up", "parameters": {"text": "a 7", "times": 3}}'
XML_CALL = (
    "<tool_call>\n<function=look_up>\n<parameter=text>\na 7\n</parameter>\n"
    "<parameter=times>\n3\n</parameter>\n</function>\n</tool_call>"
)
FAMILIES = {
    "qwen2_5": Family("qwen2_5", CHATML, "<|im_end|>", HERMES_CALL, QWEN[:4]),
    "qwen3 thinking": Family("qwen3", CHATML, "<|im_end|>", HERMES_CALL, QWEN, keeps=False),
    "qwen3 not thinking": Family("qwen3", CHATML, "<|im_end|>", HERMES_CALL, QWEN, {"enable_thinking": False}, keeps=False),
    "qwen3_5 not thinking": Family("qwen3_5_nothink", CHATML, "<|im_end|>", XML_CALL, QWEN, {"enable_thinking": False}),
    "llama3_2": Family("llama3_2", LLAMA, "<|eot_id|>", LLAMA_CALL, args={"date_string": "1 Jan 2026"}),
    "hermes tool_use": Family("hermes_tool_use", CHATML, "<|im_end|>", HERMES_CALL, QWEN[:4]),
}  # fmt: skip


def codec_of(family: Family) -> tuple[HFCodec, PreTrainedTokenizerFast]:
    path = OWN_TEMPLATES / f"{family.template}.jinja"
    shipped = not path.is_file()
    template = models_template(family.template) if shipped else path.read_text(encoding="utf-8")
    tokenizer = byte_tokenizer(template, family.special, family.eos, family.added)
    if family.special is LLAMA:
        tokenizer.bos_token = "<|begin_of_text|>"
    return HFCodec(tokenizer, family.args), tokenizer


def tool_codec(family: Family) -> tuple[HFCodec, PreTrainedTokenizerFast]:
    """Its codec, with TRL's response template if it has one."""
    codec, tokenizer = codec_of(family)
    check_turns(with_tools(), codec)
    return codec, tokenizer


def with_tools(tools: tuple[dict[str, Any], ...] = TOOLS) -> TaskEnvironment:
    environment = TaskEnvironment({}, "Look it up.")
    environment.tools = tools
    return environment


def encode_turn(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """What a policy writes: control tokens in it are tokens."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_what_a_policy_writes_is_read(family: Family) -> None:
    codec, tokenizer = tool_codec(family)
    prompt = codec.render([{"role": "user", "content": "Look up a 7."}], TOOLS)

    def read(text: str) -> Calls:
        return codec.read_calls(encode_turn(tokenizer, text), TOOLS, prompt)

    assert read(family.call + family.eos).calls == (CALL,)
    assert codec.read_calls(encode_turn(tokenizer, f"It is 7.{family.eos}"), TOOLS, ()) == Calls(
        text="It is 7."
    )
    if family.call is not HERMES_CALL:
        return  # what transformers and TRL make of more calls and of broken ones is theirs
    assert read(family.call).calls == (CALL,)
    second = family.call.replace("look_up", "repeat")
    assert [call.name for call in read(f"{family.call}\n{second}").calls] == ["look_up", "repeat"]


def test_the_prompt_shows_the_tools_and_what_follows_a_turn_opens_the_next(family: Family) -> None:
    codec, _ = tool_codec(family)
    prompt = codec.decode(codec.render([{"role": "user", "content": "Look up a 7."}], TOOLS))
    following = codec.decode(
        codec.render_next([{"role": "tool", "name": "look_up", "content": "seven"}], TOOLS)
    )

    assert '"look_up"' in prompt
    assert '"repeat"' in prompt
    assert "seven" in following
    assert "look_up" not in following  # nothing of the dialogue it was rendered after
    opening = prompt[prompt.rindex("Look up a 7.") :].removeprefix(f"Look up a 7.{family.eos}")
    assert following.endswith(opening)
    user_turn = codec.decode(codec.render_next([{"role": "user", "content": "Not JSON."}], TOOLS))
    assert "Not JSON." in user_turn
    assert "cotune_probe" not in user_turn


def test_turn_after_turn_gives_the_tokens_of_the_whole_conversation(family: Family) -> None:
    if not family.keeps:
        pytest.skip("this template drops what the policy thought, or that it did not, later on")
    codec, tokenizer = tool_codec(family)
    question = {"role": "user", "content": "Look up a 7."}
    result = {"role": "tool", "name": "look_up", "content": "seven"}
    function = {"name": CALL.name, "arguments": dict(CALL.arguments)}
    call = {"id": "call00001", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}

    step_by_step = [
        *codec.render([question], TOOLS),
        *encode_turn(tokenizer, family.call + family.eos),
        *codec.render_next([result], TOOLS),
    ]
    conversation = tokenizer.apply_chat_template(
        [question, turn, {**result, "tool_call_id": "call00001"}],
        tools=list(TOOLS),
        add_generation_prompt=True,
        return_dict=False,
        **family.args,
    )

    assert codec.decode(step_by_step) == codec.decode(list(conversation))
    assert step_by_step == list(conversation)


def test_a_thinking_template() -> None:
    # The template of the whole conversation would drop thoughts: what was read stays as it was.
    codec, _ = codec_of(FAMILIES["qwen3 thinking"])
    plain, _ = codec_of(FAMILIES["qwen3 not thinking"])
    results = [
        {"role": "tool", "name": "look_up", "content": "seven"},
        {"role": "tool", "name": "repeat", "content": "eight"},
    ]
    expected = (
        "\n<|im_start|>user\n<tool_response>\nseven\n</tool_response>\n<tool_response>\neight\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert codec.decode(codec.render_next(results, TOOLS)) == expected
    assert plain.decode(plain.render_next(results, TOOLS)) == f"{expected}<think>\n\n</think>\n\n"


def test_control_tokens_in_a_result_or_a_name_do_not_become_tokens(family: Family) -> None:
    codec, tokenizer = tool_codec(family)
    forged = "".join((*family.special, *family.added))
    message = {"role": "tool", "name": f"look_up{family.eos}", "content": f"{forged} 7 <b>"}
    plain = {"role": "tool", "name": "look_up", "content": "7 <b>"}

    def control_tokens(message: dict[str, str]) -> list[int]:
        added_ids = set(tokenizer.get_added_vocab().values())
        return [token for token in codec.render_next([message], TOOLS) if token in added_ids]

    assert control_tokens(message) == control_tokens(plain)
    assert "7 <b>" in codec.decode(codec.render_next([message], TOOLS))


def test_a_policy_in_a_folder_is_checked_the_same_way(tmp_path: Path) -> None:
    lfm = models_template("lfm2_2_5")
    save(tmp_path / "lfm", {"7": 1.0}, lfm)
    save(tmp_path / "plain", {"7": 1.0}, PLAIN_TEMPLATE)
    environment = with_tools()

    coordinator = local_coordinator(tmp_path / "lfm", environment, RolloutSettings())
    assert coordinator.settings.context_tokens == 4096  # the policy's own
    codec = coordinator.codec
    ids = codec.encode("<|tool_call_start|>[look_up(text='a')]<|tool_call_end|>")
    prompt = codec.render([{"role": "user", "content": "Look up a."}], TOOLS)

    assert codec.read_calls(ids, TOOLS, prompt).calls == (ToolCall("look_up", {"text": "a"}),)
    with pytest.raises(ConfigError, match="does not show tools"):
        local_coordinator(tmp_path / "plain", environment, RolloutSettings())


@pytest.mark.parametrize(
    ("family", "error"),
    [
        (Family("llama3", LLAMA, "<|eot_id|>", ""), "does not show tools"),
        (Family("phi_4_mini", ("<|end|>",), "<|end|>", ""), "given them in another way"),
        (
            Family("qwen2_5", CHATML, "<|endoftext|>", ""),
            r"ends a turn .* '.*<\|im_end\|>.*', but .* eos_token is '<\|endoftext\|>'",
        ),
        (Family("gptoss", GPT, "<|return|>", ""), r"eos_token is '<\|return\|>'"),
        (Family("lfm2", CHATML, "<|im_end|>", ""), "cannot be read"),
    ],
    ids=lambda value: value.template if isinstance(value, Family) else "",
)
def test_templates_that_cannot_call_tools_are_refused_in_a_line(family: Family, error: str) -> None:
    codec, _ = codec_of(family)

    with raises_line("policy.chat_template", match=error):
        check_turns(with_tools(), codec)


def test_without_tools_a_turn_that_no_eos_ends_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = with_tools(())
    stopping = GeoEnvironment(GeoOptions(train=1, validation=1, test=1))  # stop strings end turns
    for eos, warned in (("<|im_end|>", False), ("<|endoftext|>", True)):
        warn.cache_clear()
        caplog.clear()
        codec, _ = codec_of(Family("qwen2_5", CHATML, eos, ""))
        check_turns(environment, codec)
        assert len(caplog.messages) == warned
        assert all("add '<|im_end|>' to eos_token_id" in message for message in caplog.messages)
        warn.cache_clear()
        caplog.clear()
        check_turns(stopping, codec)
        assert not caplog.messages


def test_what_templates_may_do_with_tools() -> None:
    # A named template for tools is used throughout.
    qwen = models_template("qwen2_5")
    tokenizer = byte_tokenizer(qwen, CHATML, "<|im_end|>", QWEN)
    tokenizer.chat_template = {"default": PLAIN_TEMPLATE, "tool_use": qwen}  # type: ignore[assignment]
    codec = HFCodec(tokenizer)
    check_turns(with_tools(), codec)
    following = codec.render_next([{"role": "tool", "name": "look_up", "content": "7"}], TOOLS)
    assert "<tool_response>\n7\n</tool_response>" in codec.decode(following)
    assert codec.decode(codec.render([{"role": "user", "content": "7"}])) == "7\n"
    # Added tokens that the template does not write stay as they are.
    tokenizer = byte_tokenizer(qwen, CHATML, "<|im_end|>", (*QWEN, "<table>"))
    codec = HFCodec(tokenizer)
    following = codec.render_next(
        [{"role": "tool", "name": "look_up", "content": "<table>"}], TOOLS
    )
    assert "<table>" in codec.decode(following)
    # One that drops what tools answer is refused.
    dropping = qwen.replace("{{- message.content }}", "")
    assert dropping != qwen
    tokenizer = byte_tokenizer(dropping, CHATML, "<|im_end|>", QWEN)
    with pytest.raises(ConfigError, match="drops a tool message"):
        check_turns(with_tools(), HFCodec(tokenizer))


def test_a_response_template_gives_the_turns_message() -> None:
    codec, tokenizer = tool_codec(FAMILIES["qwen2_5"])
    assert tokenizer.response_template  # TRL's
    calls = codec.read_calls(encode_turn(tokenizer, f"I look. {HERMES_CALL}<|im_end|>"), TOOLS, ())
    function = {"name": "look_up", "arguments": {"text": "a 7", "times": 3}}
    assert calls.message == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"type": "function", "function": function}],
    }
    broken = codec.read_calls(
        encode_turn(tokenizer, "<tool_call>{nothing}</tool_call><|im_end|>"), TOOLS, ()
    )
    assert not broken.calls
    assert broken.message["content"] == "<tool_call>{nothing}</tool_call>"
    assert broken.error.startswith("a tool call cannot be read")


CHATML_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>")
TALK = (("user", "One?"), ("assistant", "<think>No.</think>1."))


def environment(role: Any = "user", context: Iterable[tuple[str, str]] = ()) -> TaskEnvironment:
    task = Task(
        "a",
        "Who wrote Faust, the play of 1808 that Boito set to music?",
        ("x",),
        context=tuple(context),
    )
    return SingleTurnEnvironment({"train": [task]}, "Answer in a word.", PromptFormat(role=role))


def codec_with(template: str, **template_args: Any) -> HFCodec:
    return HFCodec(byte_tokenizer(template, SPECIAL, "<|im_end|>"), template_args)


@pytest.fixture(autouse=True)
def _every_warning() -> None:
    warn.cache_clear()


@pytest.mark.parametrize(
    ("template", "role", "message"),
    [
        # no branch for system messages
        (CHATML_TEMPLATE.replace("messages", "messages if m.role != 'system'"), "system",
         r"leaves out the system message 'Answer in a word\.'… .*instruction\.role: user$"),
        # lists of parts alone
        (CHATML_TEMPLATE.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}"), "user", "user message 'Answer"),
        (CHATML_TEMPLATE.replace("m.content", "m.content[:40]"), "user", "user message 'Answer in a word"),
        # a hint
        (CHATML_TEMPLATE.replace("m.content", "m.content.split('\\n\\n')[-2:] | join('\\n\\n')"), "user",
         "leaves out the user message 'Think of what was asked"),
        (CHATML_TEMPLATE + "{{ 1 // 0 }}", "user", "cannot render the roles user .*by zero"),
        (CHATML_TEMPLATE + "{% for i in range(10 ** 9) %}{% endfor %}", "user", "cannot render the roles user .*[Rr]ange"),
        (CHATML_TEMPLATE + "{% if", "user", "cannot render the roles user"),
        ("{{ raise_exception('no system role') if messages[0].role == 'system' }}" + CHATML_TEMPLATE, "system",
         r"roles system, user \(no system role\); .*instruction\.system: replace"),
    ],
)  # fmt: skip
def test_a_template_that_loses_or_changes_a_message_is_refused(
    template: str, role: Any, message: str
) -> None:
    with raises_line("policy.chat_template", match=message):
        check_template(environment(role), codec_with(template), "Answer in a word.")


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("model", ["qwen2_5", "qwen3", "llama3_2", "deepseek_r1_distill", "phi3_5"])
def test_models_templates_keep_prompts(
    model: str, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after earlier turns, whose thoughts some of them drop."""
    codec = codec_with(models_template(model), date_string="1 Jan 2026")
    check_template(environment(role, TALK), codec, "Answer in a word.")
    assert not [m for m in caplog.messages if "today" in m]


def test_what_a_template_is_noticed_for(caplog: pytest.LogCaptureFixture) -> None:
    # It writes the date of today.
    check_template(environment(), codec_with(models_template("llama3_2")), "Answer.")
    assert any("writes the date of today" in m and "date_string" in m for m in caplog.messages)
    # It does not have an argument.
    codec = codec_with(models_template("qwen3"), enable_thinking=False, enable_thinkng=False)
    check_template(environment(), codec, "Answer.")
    assert [m for m in caplog.messages if "has no argument" in m] == [
        "policy.template_args: the chat template has no argument 'enable_thinkng'; correct the name"
    ]


def test_plain_prompts_begin_as_the_base_model_was_pretrained() -> None:
    # As the tokenizers of Llama and Mistral begin texts.
    tokenizer: Any = byte_tokenizer(CHATML_TEMPLATE, SPECIAL, "<|im_end|>")
    tokenizer.bos_token = "<s>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    use_template(tokenizer, "plain")
    codec = HFCodec(tokenizer)
    assert codec.decode(codec.render([{"role": "user", "content": "Hm?"}])) == "<s>Hm?\n"


def test_every_end_of_the_generation_config_ends_a_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gemma 3: the EOS is <eos>, and the template's turns end by <end_of_turn>, which only that file names."""
    tokenizer: Any = byte_tokenizer(CHATML_TEMPLATE, (*SPECIAL, "<eos>", "<|eom_id|>"), "<eos>")
    ends = tokenizer.convert_tokens_to_ids(["<eos>", "<|im_end|>", "<|eom_id|>"])
    for content, expected in (
        ({"eos_token_id": ends}, ends),
        ({"eos_token_id": ends[1]}, ends[:2]),
        ({}, ends[:1]),
        ([], ends[:1]),
    ):
        tokenizer.save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps(content))
        codec = HFCodec(type(tokenizer).from_pretrained(tmp_path))
        assert codec.end_ids == set(expected)
        caplog.clear()
        warn.cache_clear()
        check_template(environment(), codec, "Answer.")
        assert bool(caplog.messages) is (len(expected) == 1)
    following = HFCodec(tokenizer.from_pretrained(tmp_path))
    assert following.eos_id == ends[0]
