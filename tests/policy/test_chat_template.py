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

BASIC = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
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


def render(template: str, messages: Sequence[dict[str, Any]], **arguments: Any) -> str:
    """By the environment that transformers and vLLM compile chat templates in."""
    compiled = chat_template_utils._compile_jinja_template(template)
    return compiled.render(messages=list(messages), **arguments)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("instruction", HOSTILE)
@pytest.mark.parametrize("role", ["user", "system"])
def test_an_instruction_is_text_whatever_it_holds(instruction: str, role: Any) -> None:
    template = with_instruction(BASIC, PromptFormat(role=role), instruction)
    expected = {
        "user": f"[user]{instruction}\n\nWhy?",
        "system": f"[system]{instruction}[user]Why?",
    }
    assert render(template, [user("Why?")]) == expected[role]
    assert without_instruction(template) == BASIC


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_every_text_is_a_literal_of_itself(text: str) -> None:
    source = literal(text)
    assert source.isascii()
    assert not set("{}%#\n'") & set(source)
    assert render("{{ " + source + " }}", []) == text


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
    values: list[Any] = []
    compiled = chat_template_utils._compile_jinja_template("{{ see(" + literal(value) + ") }}")
    compiled.render(see=values.append)
    assert values == [value]


@pytest.mark.parametrize("layout", FORMATS, ids=str)
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.id)
def test_a_question_alone_gives_the_messages_of_the_prompt_format(
    layout: PromptFormat, task: Task
) -> None:
    template = with_instruction(BASIC, layout, "Be right.")
    question = PromptFormat().question_messages(task)
    for instruction, arguments in (
        ("Be right.", {}),
        ("Be right.", {"instruction": None}),
        ("Another.", {"instruction": "Another."}),
        ("", {"instruction": ""}),
    ):
        evaluated = layout.messages(task, Prompt(instruction))
        assert render(template, question, **arguments) == render(BASIC, evaluated)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("layout", [FORMATS[1], FORMATS[8], FORMATS[16]], ids=str)
def test_models_templates_render_the_same_tokens(model: str, layout: PromptFormat) -> None:
    original = models_template(model)
    tokenizer = byte_tokenizer(original, ["<|im_end|>"], "<|im_end|>")
    codec = HFCodec(tokenizer)
    render_count = 0
    for task in TASKS:
        try:
            expected = codec.render(layout.messages(task, Prompt("Be {{ right }}.")))
        except ConfigError:
            continue  # without system messages, or for lists of parts alone
        served = byte_tokenizer(
            with_instruction(original, layout, "Be {{ right }}."), ["<|im_end|>"], "<|im_end|>"
        )
        ids = served.apply_chat_template(
            PromptFormat().question_messages(task), add_generation_prompt=True, return_dict=False
        )
        assert ids == expected
        # What is trained or evaluated brings its own messages: no instruction may stand there twice.
        assert HFCodec(served).render(layout.messages(task, Prompt("Be {{ right }}."))) == expected
        render_count += 1
    assert render_count


@pytest.mark.parametrize("model", MODELS)
def test_vllm_reads_a_template_as_it_read_the_models_own(model: str) -> None:
    original = models_template(model)
    model_format = content_format(original)
    accepted = {"instruction", "enable_thinking", *accepted_arguments(original)}
    for layout in (FORMATS[0], FORMATS[10]):
        template = with_instruction(original, layout, "Be right.", {"enable_thinking": False})
        assert content_format(template) == model_format
        assert accepted <= accepted_arguments(template)


@pytest.mark.parametrize("role", ["user", "system"])
def test_lists_of_parts_are_told_in_the_parts_of_text(role: Any) -> None:
    original = (
        "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for c in m.content %}<{{ c.text or c.type }}>{% endfor %}{% endif %}{% endfor %}"
    )
    template = with_instruction(original, PromptFormat(role=role, question_prefix="Q: "), "Look.")
    image = {"type": "image"}
    first, second = ({"type": "text", "text": text} for text in "ab")
    messages = [{"role": "system", "content": [first, second]}, user([image, first, second])]
    expected = {
        "user": "[system]<a><b>[user]<image><Look.\n\nQ: ab>",
        "system": "[system]<ab\n\nLook.>[user]<image><Q: ab>",
    }
    assert render(template, messages) == expected[role]
    assert messages[1]["content"] == [image, first, second]
    alone = {"user": "[user]<image><Look.\n\nQ: >", "system": "[system]Look.[user]<image><Q: >"}
    assert render(template, [user([image])]) == alone[role]


def test_only_the_first_message_of_the_user_is_told() -> None:
    template = with_instruction(BASIC, PromptFormat(), "Be right.")
    talk = [user("One?"), {"role": "assistant", "content": "1"}, user("Two?")]
    assert render(template, talk) == "[user]Be right.\n\nOne?[assistant]1[user]Two?"
    assert render(template, [{"role": "system", "content": "x"}]) == "[system]x"
    assert render(template, [user(None)]) == "[user]Be right."
    # An instruction replaces the one before.
    first = with_instruction(BASIC, PromptFormat(), "First.")
    second = with_instruction(first, PromptFormat(role="system"), "Second.")
    assert second == with_instruction(BASIC, PromptFormat(role="system"), "Second.")
    assert own_templates({"default": second, "rag": BASIC}) == {"default": BASIC, "rag": BASIC}
    assert own_templates(None) is None
    # A template without its mark is refused.
    template = with_instruction(BASIC, PromptFormat(), "Be right.")
    with pytest.raises(ConfigError, match="the mark before the model's own template is missing"):
        without_instruction(template.replace("own template #}", "template #}"))


@pytest.mark.parametrize(
    "original",
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
def test_the_models_own_template_is_unchanged(original: str) -> None:
    template = with_instruction(original, PromptFormat(), "Be right.")
    assert render(template, [user("Why?")], instruction="") == render(original, [user("Why?")])
    assert render(template, [user("Why?")]) == render(original, [user("Be right.\n\nWhy?")])


def test_template_arguments_become_defaults() -> None:
    original = "{{ enable_thinking | tojson }}|{{ style.tone }}|{{ messages[0].content }}"
    arguments = {"enable_thinking": False, "style": {"tone": "{{ x }}"}, "no identifier": 1}
    template = with_instruction(original, PromptFormat(), "", arguments)
    assert render(template, [user("Why?")]) == "false|{{ x }}|Why?"
    assert render(template, [user("Why?")], enable_thinking=True) == "true|{{ x }}|Why?"
    with pytest.raises(TypeError, match="object"):
        with_instruction(original, PromptFormat(), "", {"style": object()})
    # Engines that know no long escapes read a literal.
    assert literal("a\n{é") == r'"a\u000a\u007b\u00e9"'
