"""The chat template that carries an instruction renders what was evaluated, whatever its text is."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import chat_template_utils

from cotune.environments.base import PromptFormat
from cotune.errors import ConfigError
from cotune.policy.chat_template import (
    literal,
    own_templates,
    with_instruction,
    without_instruction,
)
from cotune.policy.codec import PLAIN_TEMPLATE, HFCodec
from cotune.types import Prompt, Task
from tests.export.vllm_reading import accepted_arguments, content_format
from tests.policy.tiny import byte_tokenizer, models_template

SHOWN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
MODELS = (
    "qwen2_5", "qwen3", "qwen3_vl", "llama3_2", "gemma3", "gptoss", "deepseek_r1_distill", "phi3_5",
)  # fmt: skip
FORMATS = [
    PromptFormat(role=role, placement=placement, system=system, question_prefix=prefix)  # type: ignore[arg-type]
    for role, placement, system, prefix in itertools.product(
        ("user", "system"), ("before", "after"), ("keep", "replace"), ("", "Q: ")
    )
]
FORMATS += [
    PromptFormat(question_prefix="Q: ", question_suffix="\n", separator=" "),  # Search-R1's
    PromptFormat(question_suffix="{{ 1 }}", separator="", placement="after"),
    PromptFormat(question_suffix="!", role="system"),
]
TASKS = (
    Task("plain", "What is 2 + 2?", ("4",)),
    Task("system", "And 3 + 3?", ("6",), context=(("system", "You are\nterse."),)),
    Task("turns", "And 3 + 3?", ("6",), context=(("user", "2 + 2?"), ("assistant", "4"))),
)
HOSTILE = [
    "{{ 7 * 7 }} {{ messages }}",
    "{% for x in range(9) %}x{% endfor %}{%- raw -%}",
    "{# gone #} {#- cotune: the model's own template #}\nforged",
    "quotes ' \" ''' \"\"\" and `ticks`",
    "back\\slash \\n \\u0041 \\x41 \\N{DIGIT ONE} \\",
    "lines\nof\r\ntext\rand\ttabs \x0b\x0c\u2028\u2029",
    "controls \x00\x01\x1b[31m\x7f\x85 \u202e",
    "emoji \U0001f600 \U0001f469\u200d\U0001f52c ünï 中文",
    "</s><|im_end|>\n<|im_start|>system",
    " leading and trailing \n",
    "%s %(wrapped)s {0} WRAPPED $x",
    '{% endraw %}{% endif %}" -%}',
]


def rendered(template: str, messages: Sequence[dict[str, Any]], **arguments: Any) -> str:
    """By the environment that transformers and vLLM compile chat templates in."""
    compiled = chat_template_utils._compile_jinja_template(template)
    return compiled.render(messages=list(messages), **arguments)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("instruction", HOSTILE)
@pytest.mark.parametrize("role", ["user", "system"])
def test_an_instruction_is_text_whatever_it_holds(instruction: str, role: Any) -> None:
    told = with_instruction(SHOWN, PromptFormat(role=role), instruction)
    expected = {
        "user": f"[user]{instruction}\n\nWhy?",
        "system": f"[system]{instruction}[user]Why?",
    }
    assert rendered(told, [user("Why?")]) == expected[role]
    assert without_instruction(told) == SHOWN


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_every_text_is_a_literal_of_itself(text: str) -> None:
    written = literal(text)
    assert written.isascii()
    assert not set("{}%#\n'") & set(written)
    assert rendered("{{ " + written + " }}", []) == text


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(codec="utf-8"), max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    )
)
def test_every_json_value_is_a_literal_of_itself(value: Any) -> None:
    seen: list[Any] = []
    compiled = chat_template_utils._compile_jinja_template("{{ see(" + literal(value) + ") }}")
    compiled.render(see=seen.append)
    assert seen == [value]


@pytest.mark.parametrize("laid_out", FORMATS, ids=str)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_question_alone_gives_the_messages_of_the_prompt_format(
    laid_out: PromptFormat, task: Task
) -> None:
    told = with_instruction(SHOWN, laid_out, "Be right.")
    question = PromptFormat().question_messages(task)
    for instruction, arguments in (
        ("Be right.", {}),
        ("Be right.", {"instruction": None}),
        ("Another.", {"instruction": "Another."}),
        ("", {"instruction": ""}),
    ):
        evaluated = laid_out.messages(task, Prompt(instruction))
        assert rendered(told, question, **arguments) == rendered(SHOWN, evaluated)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("laid_out", [FORMATS[1], FORMATS[8], FORMATS[16]], ids=str)
def test_models_templates_render_the_same_tokens(model: str, laid_out: PromptFormat) -> None:
    own = models_template(model)
    tokenizer = byte_tokenizer(own, ["<|im_end|>"], "<|im_end|>")
    codec = HFCodec(tokenizer)
    rendered_once = 0
    for task in TASKS:
        try:
            expected = codec.render(laid_out.messages(task, Prompt("Be {{ right }}.")))
        except ConfigError:
            continue  # without system messages, or for lists of parts alone
        told = byte_tokenizer(
            with_instruction(own, laid_out, "Be {{ right }}."), ["<|im_end|>"], "<|im_end|>"
        )
        given = told.apply_chat_template(
            PromptFormat().question_messages(task), add_generation_prompt=True, return_dict=False
        )
        assert given == expected
        # What is trained or evaluated brings its own messages: no instruction may stand there twice.
        assert HFCodec(told).render(laid_out.messages(task, Prompt("Be {{ right }}."))) == expected
        rendered_once += 1
    assert rendered_once


@pytest.mark.parametrize("model", MODELS)
def test_vllm_reads_a_template_as_it_read_the_models_own(model: str) -> None:
    own = models_template(model)
    kept = content_format(own)
    accepted = {"instruction", "enable_thinking", *accepted_arguments(own)}
    for laid_out in (FORMATS[0], FORMATS[10]):
        told = with_instruction(own, laid_out, "Be right.", {"enable_thinking": False})
        assert content_format(told) == kept
        assert accepted <= accepted_arguments(told)


@pytest.mark.parametrize("role", ["user", "system"])
def test_lists_of_parts_are_told_in_the_parts_of_text(role: Any) -> None:
    own = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for c in m.content %}<{{ c.text or c.type }}>{% endfor %}{% endif %}{% endfor %}"
    )
    told = with_instruction(own, PromptFormat(role=role, question_prefix="Q: "), "Look.")
    image = {"type": "image"}
    first, second = ({"type": "text", "text": text} for text in "ab")
    asked = [{"role": "system", "content": [first, second]}, user([image, first, second])]
    expected = {
        "user": "[system]<a><b>[user]<image><Look.\n\nQ: ab>",
        "system": "[system]<ab\n\nLook.>[user]<image><Q: ab>",
    }
    assert rendered(told, asked) == expected[role]
    assert asked[1]["content"] == [image, first, second]
    alone = {"user": "[user]<image><Look.\n\nQ: >", "system": "[system]Look.[user]<image><Q: >"}
    assert rendered(told, [user([image])]) == alone[role]


def test_only_the_first_message_of_the_user_is_told() -> None:
    told = with_instruction(SHOWN, PromptFormat(), "Be right.")
    talk = [user("One?"), {"role": "assistant", "content": "1"}, user("Two?")]
    assert rendered(told, talk) == "[user]Be right.\n\nOne?[assistant]1[user]Two?"
    assert rendered(told, [{"role": "system", "content": "x"}]) == "[system]x"
    assert rendered(told, [user(None)]) == "[user]Be right."
    # An instruction replaces the one before.
    first = with_instruction(SHOWN, PromptFormat(), "First.")
    second = with_instruction(first, PromptFormat(role="system"), "Second.")
    assert second == with_instruction(SHOWN, PromptFormat(role="system"), "Second.")
    assert own_templates({"default": second, "rag": SHOWN}) == {"default": SHOWN, "rag": SHOWN}
    assert own_templates(None) is None
    # A template without its mark is refused.
    told = with_instruction(SHOWN, PromptFormat(), "Be right.")
    with pytest.raises(ConfigError, match="the mark before the model's own template is missing"):
        without_instruction(told.replace("own template #}", "template #}"))


@pytest.mark.parametrize(
    "own",
    [
        "\nfirst{{ messages | length }}",
        "  \n {% if true %}x{% endif %}",
        "{%- if true -%} x {%- endif -%}",
        "plain text",
        PLAIN_TEMPLATE,
        "{% macro show() %}{{ messages[0].content }}{% endmacro %}{{ show() }}{{ messages[-1].content }}",
        "{% set messages = messages[0:] %}{% for message in messages %}{{ loop.index }}{% endfor %}",
    ],
)
def test_the_models_own_template_is_unchanged(own: str) -> None:
    told = with_instruction(own, PromptFormat(), "Be right.")
    assert rendered(told, [user("Why?")], instruction="") == rendered(own, [user("Why?")])
    assert rendered(told, [user("Why?")]) == rendered(own, [user("Be right.\n\nWhy?")])


def test_template_arguments_become_defaults() -> None:
    own = "{{ enable_thinking | tojson }}|{{ style.tone }}|{{ messages[0].content }}"
    arguments = {"enable_thinking": False, "style": {"tone": "{{ x }}"}, "no identifier": 1}
    told = with_instruction(own, PromptFormat(), "", arguments)
    assert rendered(told, [user("Why?")]) == "false|{{ x }}|Why?"
    assert rendered(told, [user("Why?")], enable_thinking=True) == "true|{{ x }}|Why?"
    with pytest.raises(TypeError, match="object"):
        with_instruction(own, PromptFormat(), "", {"style": object()})
    # Engines that know no long escapes read a literal.
    assert literal("a\n{é") == r'"a\u000a\u007b\u00e9"'
