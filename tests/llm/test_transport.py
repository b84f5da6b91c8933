import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.llm.transport import parse_reply, parse_retry_after

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "message", "content", "usage", "prompt_tokens"]),
            children,
            max_size=4,
        )
    ),
)


@given(st.text())
def test_no_text_breaks_the_parser(body: str) -> None:
    outcome = parse_reply(body)
    assert outcome.error
    assert "\n" not in outcome.error
    assert outcome.retryable
    assert not outcome.free


@given(content=JSON, usage=JSON)
def test_a_reply_is_usable_exactly_when_it_has_text(content: object, usage: object) -> None:
    body = json.dumps({"choices": [{"message": {"content": content}}], "usage": usage})
    outcome = parse_reply(body)
    parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"] if isinstance(content, list) else []  # fmt: skip
    text = "".join(str(part or "") for part in parts) if isinstance(content, list) else content
    usable = isinstance(text, str) and bool(text.strip())
    assert (outcome.error == "") == usable
    assert bool(outcome.text) == usable
    outcome.text.encode()


@given(JSON)
def test_no_json_breaks_the_parser(reply: object) -> None:
    outcome = parse_reply(json.dumps(reply))
    assert bool(outcome.error) != bool(outcome.text)


NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", None),
        ("soon", None),
        ("-5", None),
        ("9" * 400, None),
        ("0", 0.0),
        (" 30 ", 30.0),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thu, 01 Jan 2026 12:00:10 -0000", 10.0),
        ("Thu, 01 Jan 9999999999 12:00:00 GMT", None),
        ("Thu, 01 Jan 2026 12:00:00 +9999999999", None),
    ],
)
def test_retry_after(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, NOON) == seconds


@given(st.from_regex(r"Thu, \d{1,3} Jan \d{1,12} \d{1,3}:00:00 [+-]\d{1,12}", fullmatch=True))
def test_no_date_breaks_the_reader_of_a_wait(value: str) -> None:
    seconds = parse_retry_after(value, NOON)
    assert seconds is None or seconds >= 0
