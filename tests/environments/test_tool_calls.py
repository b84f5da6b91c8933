import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.environments.tool_calls import read_hermes
from cotune.types import Calls, ToolCall

ADD = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ADD_CALL = ToolCall("add", {"a": 1})
PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "add", "arguments": {}}', "}", "\n", "é",
]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        '"args": {"a": 1}',
        '"input": {"a": 1}',
        '"arguments": null, "parameters": {"a": 1}',
        '"arguments": "{\\"a\\": 1}"',
    ],
)
def test_arguments_have_the_usual_names_and_may_be_json_in_a_text(arguments: str) -> None:
    calls = read_hermes(f'<tool_call>{{"name": "add", {arguments}}}</tool_call>')
    assert calls.calls == (ADD_CALL,)


@pytest.mark.parametrize(
    ("text", "calls", "prose"),
    [
        # In order, with what is said besides; a call within a thought is none.
        (f'First.\n{ADD}\n<tool_call>\n{{"name": "now"}}\n</tool_call>', (ADD_CALL, ToolCall("now", {})), "First."),
        (f"<think>Is it {ADD}?</think>\nIt is.{ADD} Or so.", (ADD_CALL,), f"<think>Is it {ADD}?</think>\nIt is. Or so."),
        *((text, (), text) for text in (f"<think>{ADD}</think>4", f"{ADD}</think>4", f"<think>{ADD}")),
    ],
)  # fmt: skip
def test_calls_and_what_is_said_besides(text: str, calls: tuple[ToolCall, ...], prose: str) -> None:
    assert read_hermes(text) == Calls(calls, text=prose)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<tool_call>{", "not closed"),
        (f"{ADD}</tool_call>", "closed twice"),
        (f"{ADD} and <tool_call>", "not closed"),
        ("<tool_call>add(1)</tool_call>", "not JSON"),
        ("<tool_call>[1]</tool_call>", "expected"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" is missing'),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "no object"),
        ('<tool_call>{"name": "add", "arguments": "one"}</tool_call>', "Expecting value"),
        (f"<tool_call>{'[' * 100000}</tool_call>", "not valid"),
        # A quadratic parser needs minutes, more than a test may take.
        ("<think></think><tool_call>" * 2**16, "not closed"),
    ],
    ids=range(10),
)
def test_what_cannot_be_read_is_the_turns_error(text: str, message: str) -> None:
    calls = read_hermes(text)
    assert not calls.calls
    assert message in calls.error
    assert len(calls.error) <= 120


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text())
def test_the_reader_raises_at_nothing(text: str) -> None:
    calls = read_hermes(text)
    assert not (calls.calls and calls.error)
