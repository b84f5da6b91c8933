"""What a chat template does with the prompts of a run is found out before training."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cotune.data.splits import warn
from cotune.environments.base import PromptFormat, SingleTurnEnvironment, TaskEnvironment
from cotune.errors import ConfigError
from cotune.policy.codec import HFCodec, check_template, check_turns, use_template
from cotune.types import Task
from tests.policy.tiny import byte_tokenizer, models_template

CHATML = (
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
        (CHATML.replace("messages", "messages if m.role != 'system'"), "system",
         r"leaves out the system message 'Answer in a word\.'… .*instruction\.role: user$"),
        # lists of parts alone
        (CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}"), "user", "user message 'Answer"),
        (CHATML.replace("m.content", "m.content[:40]"), "user", "user message 'Answer in a word"),
        (CHATML.replace("m.content", "m.content | upper"), "user", "user message"),
        ("Go!<|im_end|>", "user", "user message"),
        (CHATML + "{{ range(10 ** 5 - 1) | random }}", "user", "differently each time"),
        (CHATML + "{{ 1 // 0 }}", "user", "cannot render the roles user .*by zero"),
        (CHATML + "{% for i in range(10 ** 9) %}{% endfor %}", "user", "cannot render the roles user .*[Rr]ange"),
        (CHATML + "{% if", "user", "cannot render the roles user"),
        ("{{ raise_exception('no system role') if messages[0].role == 'system' }}" + CHATML, "system",
         r"roles system, user \(no system role\); .*instruction\.system: replace"),
    ],
)  # fmt: skip
def test_a_template_that_loses_or_changes_a_message_is_refused(
    template: str, role: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_template(environment(role), codec_with(template), "Answer in a word.")
    assert "policy.chat_template" in str(refused.value)
    assert "\n" not in str(refused.value)


_LOOP = "{% for i in range(9 ** 5) %}BODY{% endfor %}"


@pytest.mark.parametrize(
    "endless",
    [
        _LOOP.replace("BODY", _LOOP.replace("BODY", _LOOP)),
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set ns = namespace(text='x' * 9 ** 7) %}"
        + _LOOP.replace("BODY", "{% set ns.text = ns.text | upper | lower %}"),
        "{{ lipsum(n=9 ** 8) }}",
        "{{ 9 ** (9 ** 9) }}",
    ],
    ids=["nested loops", "a macro that calls itself twice", "slow filters", "endless text", "a power"],
)  # fmt: skip
def test_a_template_that_takes_too_long_is_refused(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotune.policy.codec._PROBE_SECONDS", 0.3)
    message = r"cannot render the roles user.* \(takes longer than 0\.3 s\); .*policy.chat_template"
    with pytest.raises(ConfigError, match=message):
        check_template(environment(), codec_with(CHATML + endless), "Answer in a word.")
    with pytest.raises(ConfigError, match=message):
        check_turns(environment(), codec_with(CHATML + endless))
    check_template(environment(), codec_with(CHATML), "Answer in a word.")


def test_a_hint_that_a_template_drops_is_missed() -> None:
    template = CHATML.replace("m.content", "m.content.split('\\n\\n')[-2:] | join('\\n\\n')")
    with pytest.raises(ConfigError, match="leaves out the user message 'Think of what was asked"):
        check_template(environment(), codec_with(template), "Answer in a word.")


@pytest.mark.parametrize("role", ["user", "system"])
@pytest.mark.parametrize("model", ["qwen2_5", "qwen3", "llama3_2", "deepseek_r1_distill", "phi3_5"])
def test_models_templates_keep_prompts(
    model: str, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after earlier turns, whose thoughts some of them drop."""
    codec = codec_with(models_template(model), date_string="1 Jan 2026")
    check_template(environment(role, TALK), codec, "Answer in a word.")
    assert not [m for m in caplog.messages if "today" in m]


def test_the_date_of_today_is_noticed_with_its_argument(caplog: pytest.LogCaptureFixture) -> None:
    check_template(environment(), codec_with(models_template("llama3_2")), "Answer.")
    assert any("writes the date of today" in m and "date_string" in m for m in caplog.messages)


def test_an_argument_that_the_template_does_not_have_is_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codec = codec_with(models_template("qwen3"), enable_thinking=False, enable_thinkng=False)
    check_template(environment(), codec, "Answer.")
    assert [m for m in caplog.messages if "has no argument" in m] == [
        "policy.template_args: the chat template has no argument 'enable_thinkng'; correct the name"
    ]


def with_bos() -> Any:
    """A tokenizer that begins texts with its BOS, as those of Llama and Mistral."""
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = byte_tokenizer(CHATML, SPECIAL, "<|im_end|>")
    tokenizer.bos_token = "<s>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return tokenizer


def test_plain_prompts_begin_as_the_base_model_was_pretrained() -> None:
    tokenizer = with_bos()
    use_template(tokenizer, "plain")
    codec = HFCodec(tokenizer)
    assert codec.decode(codec.render([{"role": "user", "content": "Hm?"}])) == "<s>Hm?\n"


def test_a_template_without_the_tokenizers_bos_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    check_template(environment(), HFCodec(with_bos()), "Answer.")
    assert [m for m in caplog.messages if "begins texts with '<s>'" in m]


def test_every_end_of_the_generation_config_ends_a_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Gemma 3: the EOS is <eos>, and the template's turns end by <end_of_turn>, which only that file names."""
    tokenizer: Any = byte_tokenizer(CHATML, (*SPECIAL, "<eos>", "<|eom_id|>"), "<eos>")
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
