import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.environments.tool_calls import READERS, Reader, read_hermes, read_llama, read_xml
from cotune.types import Calls, ToolCall
from tests.helpers import tool_schema

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
XML = "<tool_call>\n<function=add>\n{}</function>\n</tool_call>"
PARAMETERS = {
    "zip": {"type": "string"},
    "n": {"type": "integer"},
    "items": {"type": "array", "items": {"type": "integer"}},
    "exact": {"type": "boolean"},
    "digits": {"type": "integer", "enum": [1, 2]},
    "unit": {"type": "string", "nullable": True},
    "order": {"type": "string", "enum": ["asc", "desc"], "nullable": True},
    "strict": {"enum": [True, False]},
    "either": {"type": ["integer", "string"]},
}
SCHEMA = tool_schema("add", **PARAMETERS)
PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=add>", "</function>",
    "<parameter=n>", "</parameter>", '{"name": "add", "parameters": {',
    '{"name": "add", "arguments": {}}', "}", "\n", "é",
]  # fmt: skip
WRITTEN = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text()


@pytest.mark.parametrize(
    "arguments",
    [
        '"parameters": {"a": 1}',
        '"args": {"a": 1}',
        '"input": {"a": 1}',
        '"arguments": null, "parameters": {"a": 1}',
        '"arguments": "{\\"a\\": 1}"',
        '"id": "x", "type": "function", "parameters": "{\\"a\\": 1}"',
    ],
)
def test_arguments_have_the_usual_names_and_may_be_json_in_a_text(arguments: str) -> None:
    calls = read_hermes(f'<tool_call>{{"name": "add", {arguments}}}</tool_call>')
    assert calls.calls == (ToolCall("add", {"a": 1}),)


def parameter(name: str, value: str) -> str:
    return f"<parameter={name}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("zip", "01234", "01234"),
        ("zip", "two\nlines", "two\nlines"),
        ("n", "7", 7),
        ("n", "seven", "seven"),
        ("items", "[1, 2]", [1, 2]),
        ("exact", "True", True),
        ("exact", "false", False),
        ("digits", "2", 2),
        ("digits", "3", "3"),
        ("unit", "None", None),
        ("unit", "kg", "kg"),
        ("order", "null", None),
        ("order", "desc", "desc"),
        ("strict", "true", True),
        ("strict", "False", False),
        ("either", "5", 5),
        ("unknown", "5", "5"),
    ],
)
def test_xml_values_take_the_types_of_the_schema(name: str, written: str, value: object) -> None:
    calls = read_xml(XML.format(parameter(name, written)), [SCHEMA])

    assert calls.calls == (ToolCall("add", {name: value}),)


ONE = (ToolCall("add", {"a": 1}),)
LLAMA = '{"name": "add", "parameters": {"a": 1}}'


@pytest.mark.parametrize(
    ("read", "text", "calls", "said"),
    [
        # In order, with what is said besides; a call within a thought is none.
        (read_hermes, f'First.\n{ADD}\n<tool_call>\n{{"name": "now"}}\n</tool_call>', (*ONE, ToolCall("now", {})), "First."),
        (read_hermes, f"<think>Is it {ADD}?</think>\nIt is.{ADD} Or so.", ONE, f"<think>Is it {ADD}?</think>\nIt is. Or so."),
        *((read_hermes, text, (), text) for text in (f"<think>{ADD}</think>4", f"{ADD}</think>4", f"<think>{ADD}")),
        (read_xml, XML.format(""), (ToolCall("add", {}),), ""),
        # Llama's are a whole turn; other JSON is an answer.
        (read_llama, LLAMA, ONE, ""),
        (read_llama, f"<|python_tag|>{LLAMA}\n", ONE, ""),
        (read_llama, f"I call {LLAMA}", (), f"I call {LLAMA}"),
        *((read_llama, text, (), text) for text in ('{"answer": 3}', '{"name": "Ann"}', "{not json}", "[1]", "3", "{}")),
    ],
)  # fmt: skip
def test_calls_and_what_is_said_besides(
    read: Reader, text: str, calls: tuple[ToolCall, ...], said: str
) -> None:
    assert read(text, [SCHEMA]) == Calls(calls, said=said)


def test_an_xml_call_of_an_unknown_tool_has_texts() -> None:
    assert read_xml(XML.format(parameter("n", "5")), []).calls == (ToolCall("add", {"n": "5"}),)


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_hermes, "<tool_call>{", "not closed"),
        (read_hermes, f"{ADD}</tool_call>", "closed twice"),
        (read_hermes, f"<tool_call>{ADD}", "not closed"),
        (read_hermes, f"{ADD} and <tool_call>", "not closed"),
        (read_hermes, "<tool_call>add(1)</tool_call>", "not JSON"),
        (read_hermes, "<tool_call>[1]</tool_call>", "expected"),
        (read_hermes, '<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        (read_hermes, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "no object"),
        (read_hermes, '<tool_call>{"name": "add", "parameters": 3}</tool_call>', "no object"),
        (read_hermes, '<tool_call>{"name": "add", "arguments": "one"}</tool_call>', "Expecting value"),
        (read_hermes, f"<tool_call>{'[' * 100000}</tool_call>", "not valid"),
        (read_xml, ADD, ""),
        (read_xml, "<tool_call><function=add></tool_call>", ""),
        (read_xml, XML.format("<parameter=n>\n5\n"), ""),
        (read_xml, XML.format("so: " + parameter("n", "5")), ""),
        (read_llama, '{"name": "add", "parameters": {"a": ', "a tool call is not valid"),
        (read_llama, '{"name": "add", "parameters": {}} {}', "a tool call is not valid"),
        (read_llama, '{"name": "", "parameters": {}}', "a tool call is not valid"),
        (read_llama, '{"name": "add", "parameters": 3}', "a tool call is not valid"),
    ],
    ids=range(19),
)  # fmt: skip
def test_what_cannot_be_read_is_the_turns_error(read: Reader, text: str, said: str) -> None:
    calls = read(text, [SCHEMA])

    assert not calls.calls
    assert calls.error
    assert said in calls.error
    assert len(calls.error) <= 120


@given(WRITTEN)
def test_readers_raise_at_nothing(text: str) -> None:
    for read in READERS:
        calls = read(text, [SCHEMA])
        assert not (calls.calls and calls.error)


REPEATED = 2**16
CALL = "<function=add><parameter=n>1</parameter></function>"


@pytest.mark.parametrize(
    ("read", "text", "calls"),
    [
        (read_hermes, "<think></think><tool_call>" * REPEATED, 0),
        (read_xml, f"<tool_call>{CALL}</tool_call>" * REPEATED, REPEATED),
        (read_xml, f"<tool_call><function=add>{'<parameter=a>' * REPEATED}</function></tool_call>", 0),
        (read_xml, f"<tool_call><function=add>{'<parameter=' * REPEATED}</function></tool_call>", 0),
    ],
    ids=range(4),
)  # fmt: skip
def test_repeated_tags_are_read_in_linear_time(read: Reader, text: str, calls: int) -> None:
    """A quadratic parser needs minutes, more than a test may take."""
    found = read(text, [SCHEMA])

    assert len(found.calls) == calls
    assert bool(found.error) == (not calls)
