"""Tool calls through real models' chat templates, as TRL ships them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cotune.data.splits import warn
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError
from cotune.policy.codec import PLAIN_TEMPLATE, HFCodec, check_turns
from cotune.policy.local_policy import local_coordinator
from cotune.rollout.coordinator import RolloutSettings
from cotune.types import Calls, ToolCall
from cotune_lab.worlds.geo import GeoEnvironment
from tests.helpers import tool_schema
from tests.policy.bigram import save
from tests.policy.tiny import byte_tokenizer, models_template

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
    several: bool = True
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
    "qwen3_instruct_2507": Family("qwen3_instruct_2507", CHATML, "<|im_end|>", HERMES_CALL, QWEN[:4]),
    "qwen3_5 thinking": Family("qwen3_5_think", CHATML, "<|im_end|>", XML_CALL, QWEN, keeps=False),
    "qwen3_5 not thinking": Family("qwen3_5_nothink", CHATML, "<|im_end|>", XML_CALL, QWEN, {"enable_thinking": False}),
    "llama3_1": Family("llama3_1", LLAMA, "<|eot_id|>", LLAMA_CALL, args={"date_string": "1 Jan 2026"}, several=False),
    "llama3_2": Family("llama3_2", LLAMA, "<|eot_id|>", LLAMA_CALL, args={"date_string": "1 Jan 2026"}, several=False),
    "hermes tool_use": Family("hermes_tool_use", CHATML, "<|im_end|>", HERMES_CALL, QWEN[:4]),
}  # fmt: skip


def codec_of(family: Family) -> tuple[HFCodec, PreTrainedTokenizerFast]:
    own = OWN_TEMPLATES / f"{family.template}.jinja"
    shipped = not own.is_file()
    template = models_template(family.template) if shipped else own.read_text(encoding="utf-8")
    tokenizer = byte_tokenizer(template, family.special, family.eos, family.added)
    if family.special is LLAMA:
        tokenizer.bos_token = "<|begin_of_text|>"
    return HFCodec(tokenizer, family.args), tokenizer


def written(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """What a policy writes: control tokens in it are tokens."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_what_a_policy_writes_is_read(family: Family) -> None:
    codec, tokenizer = codec_of(family)
    prompt = codec.render([{"role": "user", "content": "Look up a 7."}], TOOLS)

    def read(text: str) -> Calls:
        return codec.read_calls(written(tokenizer, text), TOOLS, prompt)

    assert read(family.call + family.eos).calls == (CALL,)
    assert read(family.call).calls == (CALL,)
    assert codec.read_calls(written(tokenizer, f"It is 7.{family.eos}"), TOOLS, ()) == Calls(
        said="It is 7."
    )
    if family.several:
        second = family.call.replace("look_up", "repeat")
        calls = read(f"{family.call}\n{second}").calls
        assert [call.name for call in calls] == ["look_up", "repeat"]
    cut = read(family.call[:-15])
    assert not cut.calls
    assert cut.error


def test_the_prompt_shows_the_tools_and_what_follows_a_turn_opens_the_next(family: Family) -> None:
    codec, _ = codec_of(family)
    codec.check_tools(TOOLS)
    prompt = codec.decode(codec.render([{"role": "user", "content": "Look up a 7."}], TOOLS))
    following = codec.decode(
        codec.render_next([{"role": "tool", "name": "look_up", "content": "seven"}], TOOLS)
    )

    assert '"look_up"' in prompt
    assert '"repeat"' in prompt
    assert "seven" in following
    assert "look_up" not in following  # nothing of the dialogue it was rendered after
    opened = prompt[prompt.rindex("Look up a 7.") :].removeprefix(f"Look up a 7.{family.eos}")
    assert following.endswith(opened)
    asked = codec.decode(codec.render_next([{"role": "user", "content": "Not JSON."}], TOOLS))
    assert "Not JSON." in asked
    assert "cotune_probe" not in asked


def test_turn_after_turn_gives_the_tokens_of_the_whole_conversation(family: Family) -> None:
    if not family.keeps:
        pytest.skip("this template drops what the policy thought, or that it did not, later on")
    codec, tokenizer = codec_of(family)
    question = {"role": "user", "content": "Look up a 7."}
    result = {"role": "tool", "name": "look_up", "content": "seven"}
    function = {"name": CALL.name, "arguments": dict(CALL.arguments)}
    call = {"id": "call00001", "function": function}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    codec.check_tools(TOOLS)

    step_by_step = [
        *codec.render([question], TOOLS),
        *written(tokenizer, family.call + family.eos),
        *codec.render_next([result], TOOLS),
    ]
    whole = tokenizer.apply_chat_template(
        [question, turn, {**result, "tool_call_id": "call00001"}],
        tools=list(TOOLS),
        add_generation_prompt=True,
        return_dict=False,
        **family.args,
    )

    assert codec.decode(step_by_step) == codec.decode(list(whole))
    assert step_by_step == list(whole)


def test_a_thinking_template_shows_results_after_what_the_policy_thought() -> None:
    """The template of the whole conversation would drop thoughts: what was read stays as it was."""
    codec, _ = codec_of(FAMILIES["qwen3 thinking"])
    plain, _ = codec_of(FAMILIES["qwen3 not thinking"])
    results = [
        {"role": "tool", "name": "look_up", "content": "seven"},
        {"role": "tool", "name": "repeat", "content": "eight"},
    ]
    shown = (
        "\n<|im_start|>user\n<tool_response>\nseven\n</tool_response>\n<tool_response>\neight\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )

    assert codec.decode(codec.render_next(results, TOOLS)) == shown
    assert plain.decode(plain.render_next(results, TOOLS)) == f"{shown}<think>\n\n</think>\n\n"


def test_calls_within_a_thought_are_none() -> None:
    codec, tokenizer = codec_of(FAMILIES["qwen3 thinking"])

    thought = f"<think>\n{HERMES_CALL}\n</think>\n\nNo need."
    opened_by_the_template = f"{HERMES_CALL}\n</think>\n\nNo need."

    for text in (thought, opened_by_the_template, f"<think>\n{HERMES_CALL}"):
        assert codec.read_calls(written(tokenizer, text), TOOLS, ()) == Calls(said=text)


def test_control_tokens_in_a_result_or_a_name_do_not_become_tokens(family: Family) -> None:
    codec, tokenizer = codec_of(family)
    codec.check_tools(TOOLS)
    forged = "".join((*family.special, *family.added))
    message = {"role": "tool", "name": f"look_up{family.eos}", "content": f"{forged} 7 <b>"}
    plain = {"role": "tool", "name": "look_up", "content": "7 <b>"}

    def control(message: dict[str, str]) -> list[int]:
        known = set(tokenizer.get_added_vocab().values())
        return [token for token in codec.render_next([message], TOOLS) if token in known]

    assert control(message) == control(plain)
    assert "7 <b>" in codec.decode(codec.render_next([message], TOOLS))


def test_added_tokens_that_the_template_does_not_write_stay_as_they_are() -> None:
    template = models_template("qwen2_5")
    tokenizer = byte_tokenizer(template, CHATML, "<|im_end|>", (*QWEN, "<table>"))
    codec = HFCodec(tokenizer)

    following = codec.render_next(
        [{"role": "tool", "name": "look_up", "content": "<table>"}], TOOLS
    )

    assert "<table>" in codec.decode(following)


def with_tools(tools: tuple[dict[str, Any], ...] = TOOLS) -> TaskEnvironment:
    environment = TaskEnvironment({}, "Look it up.")
    environment.tools = tools
    return environment


def test_a_policy_in_a_folder_is_checked_the_same_way(tmp_path: Path) -> None:
    lfm = models_template("lfm2_2_5")
    save(tmp_path / "lfm", {"7": 1.0}, lfm)
    save(tmp_path / "plain", {"7": 1.0}, PLAIN_TEMPLATE)
    environment = with_tools()

    codec = local_coordinator(tmp_path / "lfm", environment, "Go.", RolloutSettings()).codec
    ids = codec.encode("<|tool_call_start|>[look_up(text='a')]<|tool_call_end|>")
    prompt = codec.render([{"role": "user", "content": "Look up a."}], TOOLS)

    assert codec.read_calls(ids, TOOLS, prompt).calls == (ToolCall("look_up", {"text": "a"}),)
    with pytest.raises(ConfigError, match="does not show tools"):
        local_coordinator(tmp_path / "plain", environment, "Go.", RolloutSettings())


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (Family("llama3", LLAMA, "<|eot_id|>", ""), "does not show tools"),
        (Family("gemma_2", ("<end_of_turn>",), "<end_of_turn>", ""), "does not show tools"),
        (Family("phi_4_mini", ("<|end|>",), "<|end|>", ""), "given them in another way"),
        (
            Family("qwen2_5", CHATML, "<|endoftext|>", ""),
            r"ends a turn .* '.*<\|im_end\|>.*', but .* eos_token is '<\|endoftext\|>'",
        ),
        (Family("phi3", ("<|user|>", "<|end|>"), "<|end|>", ""), "does not show tools"),
        (Family("gptoss", GPT, "<|return|>", ""), r"eos_token is '<\|return\|>'"),
        (Family("glm4moe", ("<|user|>", "<|assistant|>"), "<|user|>", ""), "ends a turn"),
        (Family("lfm2", CHATML, "<|im_end|>", ""), "cannot be read"),
    ],
    ids=lambda value: value.template if isinstance(value, Family) else "",
)
def test_templates_that_cannot_call_tools_are_refused_in_a_line(family: Family, said: str) -> None:
    codec, tokenizer = codec_of(family)

    with pytest.raises(ConfigError, match=said) as raised:
        check_turns(with_tools(), codec)

    assert "\n" not in str(raised.value)
    assert "policy.chat_template" in str(raised.value)
    assert getattr(tokenizer, "response_template", None) is None


def test_an_environment_without_tools_asks_nothing_of_the_template() -> None:
    tokenizer = byte_tokenizer(PLAIN_TEMPLATE, CHATML, "<|im_end|>")

    check_turns(with_tools(()), HFCodec(tokenizer))


def test_without_tools_a_turn_that_no_eos_ends_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment, stopping = with_tools(()), GeoEnvironment()  # whose stop strings end turns
    for eos, warned in (("<|im_end|>", False), ("<|endoftext|>", True)):
        warn.cache_clear()
        caplog.clear()
        codec, _ = codec_of(Family("qwen2_5", CHATML, eos, ""))
        check_turns(environment, codec)
        assert caplog.messages == warned * [
            "policy: its chat template ends a turn by '<|im_end|>', but its tokenizer's eos_token is "
            "'<|endoftext|>', at which rollouts end; if it was trained on that template, add '<|im_end|>' "
            "to eos_token_id in its generation_config.json, or every rollout goes on to limits.turn_tokens"
        ]
        warn.cache_clear()
        caplog.clear()
        check_turns(stopping, codec)
        assert not caplog.messages


def test_a_template_that_drops_what_tools_answer_is_refused() -> None:
    template = models_template("qwen2_5")
    dropping = template.replace("{{- message.content }}", "")
    assert dropping != template
    tokenizer = byte_tokenizer(dropping, CHATML, "<|im_end|>", QWEN)

    with pytest.raises(ConfigError, match="drops a tool message"):
        check_turns(with_tools(), HFCodec(tokenizer))


def test_a_named_template_for_tools_is_used_throughout() -> None:
    qwen = models_template("qwen2_5")
    tokenizer = byte_tokenizer(qwen, CHATML, "<|im_end|>", QWEN)
    tokenizer.chat_template = {"default": PLAIN_TEMPLATE, "tool_use": qwen}  # type: ignore[assignment]
    codec = HFCodec(tokenizer)

    check_turns(with_tools(), codec)
    following = codec.render_next([{"role": "tool", "name": "look_up", "content": "7"}], TOOLS)

    assert "<tool_response>\n7\n</tool_response>" in codec.decode(following)
    assert codec.decode(codec.render([{"role": "user", "content": "7"}])) == "7\n"


def test_a_response_template_of_the_tokenizer_comes_first() -> None:
    codec, tokenizer = codec_of(FAMILIES["qwen2_5"])
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "CALL",
                "close_pattern": "END",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|im_end\|>", "content": "text"},
        },
    }
    call = json.dumps({"name": "look_up", "arguments": {"text": "a 7", "times": 3}})

    read = codec.read_calls(written(tokenizer, f"I look. CALL{call}END<|im_end|>"), TOOLS, ())
    broken = codec.read_calls(written(tokenizer, "CALL{nothing}END<|im_end|>"), TOOLS, ())

    assert read == Calls((CALL,), said="I look.")
    function = {"name": "look_up", "arguments": {"text": "a 7", "times": 3}}
    assert read.message == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"type": "function", "function": function}],
    }
    assert broken.message["content"] == "CALL{nothing}END"
    assert not broken.calls
    assert broken.error.startswith("a tool call cannot be read")
