"""The client against a real HTTP server on loopback that fails in the ways servers do."""

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.errors import BudgetError, ConfigError, LLMError
from cotune.llm.client import MeteredLLM, OpenAIClient, OpenAIOptions, parse_reply
from cotune.protocols import State
from cotune.run.record import Record, llm_state
from cotune.types import Completion
from tests.helpers import raises_line
from tests.loopback import serving
from tests.scripted import ScriptedLLM

KEY = "sk-test-4f9aQ7-do-not-leak"
PROMPT = "hello"
# (5 bytes + 64 for the template) x 2 + 32 tokens x 8, per million
WORST = (69 * 2 + 32 * 8) / 1e6
# 60 x 2 + 25 x 8, per million
COST = 0.00032


@dataclass
class Canned:
    """One reply."""

    body: bytes = b""
    status: int = 200


@dataclass
class Request:
    headers: dict[str, str]
    body: bytes


class Server:
    """Plays canned replies in order, never answers at None, then sends 500; keeps what it was sent.

    A reply of status 0 closes the connection, of status 307 it leads to the same address.
    """

    def __init__(self) -> None:
        self.replies: list[Canned | None] = []
        self.requests: list[Request] = []
        self.over = threading.Event()
        self.url = ""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        assert request.path == "/v1/chat/completions"
        body = request.rfile.read(int(request.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Request(headers, body))
        index = len(self.requests) - 1
        reply = self.replies[index] if index < len(self.replies) else Canned(status=500)
        if reply is None:
            self.over.wait()
            return
        if reply.status == 0:
            request.close_connection = True
            return
        request.send_response(reply.status)
        if reply.status == 307:
            request.send_header("Location", f"{self.url}/chat/completions")
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(reply.body)))
        request.send_header("Retry-After-Ms", "1")
        request.end_headers()
        request.wfile.write(reply.body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = Server()
    with serving(server.handle) as address:
        server.url = f"{address}/v1"
        yield server
        server.over.set()


@dataclass
class Bench:
    client: OpenAIClient
    record: Record

    def states(self) -> list[str]:
        return ["failed" if row.error else "done" for row in self.record.read_costs()]


def bench(server: Server, path: Path | None = None, retries: int = 2, **changes: Any) -> Bench:
    values: dict[str, Any] = {
        "model": "m",
        "base_url": server.url,
        "max_tokens": 32,
        "timeout_s": 20.0,
        "price_per_million_prompt_tokens": 2.0,
        "price_per_million_completion_tokens": 8.0,
    }
    record = Record() if path is None else Record.create(path, {})
    record.begin_attempt(None)
    return Bench(OpenAIClient(OpenAIOptions(**(values | changes)), record, retries), record)


def chat(text: object = "a proposal", usage: object = (60, 25), **choice: object) -> Canned:
    reply: dict[str, object] = {"choices": [{"message": {"content": text}, **choice}]}
    if isinstance(usage, tuple):
        usage = dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
    if usage is not None:
        reply["usage"] = usage
    return Canned(json.dumps(reply).encode())


EXTRA = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 20}


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"temperature": 0.7}, {"temperature": 0.7, "max_tokens": 32}),
        (
            {"temperature": None, "max_tokens_field": "max_completion_tokens"},
            {"max_completion_tokens": 32},
        ),
        ({"extra_body": EXTRA}, {"temperature": 1.0, "max_tokens": 32, **EXTRA}),
    ],
)
def test_a_reply_is_returned_and_entered(
    server: Server, changes: dict[str, Any], fields: dict[str, Any]
) -> None:
    server.replies = [chat()]
    b = bench(server, **changes)
    assert b.client.complete(PROMPT) == Completion("a proposal", 60, 25)
    (request,) = server.requests
    messages = [{"role": "user", "content": PROMPT}]
    assert json.loads(request.body) == {"model": "m", "messages": messages, **fields}
    (row,) = b.record.read_costs()
    assert (row.kind, row.model, row.error, row.estimated) == ("llm", "m", "", False)
    assert (row.prompt_tokens, row.completion_tokens) == (60, 25)
    assert row.money == pytest.approx(COST)


@pytest.mark.parametrize(
    ("reason", "truncated"),
    [("stop", False), ("end_turn", False), (None, False), (["stop"], False), ("length", True)],
)
def test_a_reply_is_whole_unless_its_finish_reason_is_known_to_be_bad(
    server: Server, reason: object, truncated: bool
) -> None:
    server.replies = [chat(finish_reason="content_filter"), chat(finish_reason=reason)]
    expected = Completion("a proposal", 60, 25, truncated=truncated)
    b = bench(server)
    assert b.client.complete(PROMPT) == expected
    failed, _ = b.record.read_costs()
    assert failed.error == "the reply is not whole (finish_reason 'content_filter')"


def test_an_address_in_the_environment_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    with pytest.raises(ConfigError, match=r"OPENAI_BASE_URL is set, but llm\.base_url is not"):
        OpenAIClient(OpenAIOptions(model="m"), Record())
    OpenAIClient(OpenAIOptions(model="m", base_url="https://api.openai.com/v1"), Record())


def test_passing_failures_are_tried_again_and_cost_nothing(server: Server) -> None:
    server.replies = [Canned(b'{"error": "busy"}', 429), chat()]
    b = bench(server)
    assert b.client.complete(PROMPT).text == "a proposal"
    assert b.states() == ["done"]
    assert b.record.totals().money == pytest.approx(COST)
    server.replies += [Canned(status=500), Canned(status=500), Canned(b"overloaded", 503), chat()]
    with pytest.raises(LLMError, match=r"no reply from m at http.*503.*overloaded"):
        b.client.complete(PROMPT)
    assert len(server.requests) == 2 + 3
    assert (b.states(), b.record.totals().money) == (["done", "failed"], pytest.approx(COST))


@pytest.mark.parametrize(
    ("status", "fields"),
    [(400, "llm.max_tokens"), (401, "llm.api_key_env"), (404, "llm.base_url and llm.model")],
)
def test_refusals_are_final_and_name_the_field(server: Server, status: int, fields: str) -> None:
    refusal = b'{"error": {"message": "no such thing"}}'
    server.replies = [Canned(refusal, status), chat()]
    b = bench(server)
    with raises_line(fields, match=rf"HTTP status {status}.*no such thing", error=LLMError):
        b.client.complete(PROMPT)
    assert len(server.requests) == 1
    assert (b.states(), b.record.totals().money) == (["failed"], 0.0)


@pytest.mark.parametrize(
    "body",
    [b"<html>hello</html>", b"\xff\xfe\x00", b"[" * 200_000, b'{"choices": {"0": 1}}', b"{}"],
)
def test_garbage_is_tried_again_and_counted_at_its_worst_case(server: Server, body: bytes) -> None:
    server.replies = [Canned(body), chat()]
    b = bench(server)
    assert b.client.complete(PROMPT).text == "a proposal"
    failed, done = b.record.read_costs()
    assert failed.error.startswith("the reply is no chat completion: ")
    assert len(failed.error) <= 300
    assert (failed.estimated, failed.money) == (True, WORST)
    assert (done.error, done.estimated) == ("", False)
    assert b.record.totals().money == pytest.approx(WORST + COST)


def test_a_reply_without_text_costs_what_it_reports(server: Server) -> None:
    server.replies = [chat(None), chat("  \n"), chat("", finish_reason="length")]
    b = bench(server)
    with pytest.raises(LLMError, match=r"no text.*llm\.max_tokens may be too low"):
        b.client.complete(PROMPT)
    assert b.states() == ["failed"] * 3
    assert b.record.totals().money == pytest.approx(3 * COST)
    assert sum(row.estimated for row in b.record.read_costs()) == 0


def test_a_stalled_server_times_out(server: Server) -> None:
    server.replies = [None]
    b = bench(server, timeout_s=0.3, retries=0)
    with pytest.raises(LLMError, match=r"1 attempt\(s\) of llm\.timeout_s, 0\.3 s"):
        b.client.complete(PROMPT)
    (row,) = b.record.read_costs()
    # It may have reached a model, which charges for it.
    assert (bool(row.error), row.estimated, row.money > 0) == (True, True, True)


def test_a_connection_that_breaks_after_sending_may_cost_and_no_redirect_is_followed(
    server: Server,
) -> None:
    server.replies = [Canned(status=0), Canned(status=307)]
    b = bench(server, retries=0)
    for error in ("RemoteProtocolError", "HTTP status 307"):
        with pytest.raises(LLMError, match=error):
            b.client.complete(PROMPT)
    assert [row.estimated for row in b.record.read_costs()] == [True, False]
    assert len(server.requests) == 2


def test_a_server_that_is_not_there_costs_nothing(server: Server) -> None:
    b = bench(server, base_url="http://127.0.0.1:9/v1", retries=1)
    with pytest.raises(LLMError, match="ConnectError"):
        b.client.complete(PROMPT)
    assert b.states() == ["failed"]
    assert b.record.totals().money == 0.0


@pytest.mark.parametrize("usage", [None, "many", (-1, 5), (1, None), (1, 2**40)])
def test_without_a_usable_usage_report_the_upper_bound_is_counted(
    server: Server, usage: object
) -> None:
    server.replies = [chat(usage=usage)]
    b = bench(server)
    assert b.client.complete(PROMPT) == Completion("a proposal", 69, 32)
    (row,) = b.record.read_costs()
    assert (row.error, row.estimated, row.money) == ("", True, WORST)


def test_lone_surrogates_neither_go_out_nor_come_in(server: Server) -> None:
    server.replies = [Canned(b'{"choices": [{"message": {"content": "bad \\ud800 pair"}}]}')]
    b = bench(server)
    assert b.client.complete("odd \udcff byte").text == "bad ? pair"
    assert json.loads(server.requests[0].body)["messages"][0]["content"] == "odd ? byte"


def test_no_call_follows_once_the_budget_is_spent(server: Server) -> None:
    server.replies = [chat(), chat()]
    b = bench(server, budget=1.5 * COST)
    b.client.complete(PROMPT)
    b.client.complete(PROMPT)
    with pytest.raises(BudgetError, match=r"llm\.budget"):
        b.client.complete(PROMPT)
    assert b.states() == ["done", "done"]
    # Nor is a reply asked for again.
    server.replies = [chat(), chat(), Canned(b"garbage"), chat()]
    with pytest.raises(BudgetError):
        bench(server, budget=WORST).client.complete(PROMPT)
    assert len(server.requests) == 3


def test_the_key_goes_in_the_authorization_header_and_nowhere_else(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = f'{{"error": {{"message": "bad key {KEY}"}}}}'.encode()
    server.replies = [Canned(echo, 500), Canned(echo)]
    server.replies += [chat(f"your key is {KEY}"), Canned(echo, 401)]
    b = bench(server, tmp_path / "run")
    assert b.client.complete(PROMPT).text == "your key is ***"
    with pytest.raises(LLMError, match=r"HTTP status 401.*bad key \*\*\*") as caught:
        b.client.complete(PROMPT)

    for request in server.requests:
        carriers = [name for name, value in request.headers.items() if KEY in value]
        assert carriers == ["authorization"]
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert KEY.encode() not in request.body
    error: BaseException | None = caught.value
    assert KEY not in "".join(traceback.format_exception(caught.value))
    while error is not None:
        assert KEY not in repr(error)
        error = error.__context__
    assert KEY not in caplog.text
    assert len(b.record.read_costs()) == 3
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def test_a_placeholder_for_a_key_stays_in_replies(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEHOLDER", "none")
    server.replies = [chat("If there is none, say 1.")]
    reply = bench(server, api_key_env="PLACEHOLDER").client.complete(PROMPT)
    assert reply.text == "If there is none, say 1."


@pytest.mark.parametrize("proxy", ["http://me:pw/x@host:1", "ftp://me:pw@host:1"])
def test_a_proxy_that_cannot_be_used_is_one_line_without_its_password(
    server: Server, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ConfigError, match="llm: the environment's proxy cannot be used") as caught:
        bench(server).client.complete(PROMPT)
    assert "pw" not in "".join(traceback.format_exception(caught.value))


def test_the_environments_key_is_not_sent_where_none_is_needed(server: Server) -> None:
    server.replies = [chat()]
    bench(server, api_key_env=None).client.complete(PROMPT)
    assert "authorization" not in server.requests[0].headers
    assert not any(KEY in value for value in server.requests[0].headers.values())


def test_headers_of_a_gateway_are_sent_and_hidden(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")  # for OpenAI alone
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "api-key: gateway-secret")
    server.replies = [Canned(b"no: gateway-secret", 401)]
    with pytest.raises(LLMError, match=r"HTTP status 401: 'no: \*\*\*'"):
        bench(server).client.complete(PROMPT)
    headers = server.requests[0].headers
    assert headers["api-key"] == "gateway-secret"
    assert not {"openai-organization", "openai-project"} & headers.keys()


@pytest.mark.parametrize(
    ("value", "match"), [(None, "is not set"), ("  ", "is not set"), ("sk-secret\nX", "holds no")]
)
def test_a_variable_without_a_key_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, value: str | None, match: str
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(ConfigError, match=rf"MY_KEY {match}.*llm\.api_key_env") as caught:
        bench(server, api_key_env="MY_KEY")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": " "}, "model is"),
        ({"base_url": "https://user:secret@host/v1"}, "base_url"),
        ({"api_key_env": "gsk_secret"}, "api_key_env"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"budget": 1.0}, "both prices are 0"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        OpenAIOptions(**{"model": "m", **changes})
    assert "secret" not in str(caught.value)


def llm_replying(reply: Any) -> tuple[MeteredLLM, Record]:
    """An LLM object of the user's that returns or raises this."""

    class Own:
        def complete(self, prompt: str) -> Completion:
            if isinstance(reply, BaseException):
                raise reply
            return reply

    record = Record()
    record.begin_attempt(None)
    return MeteredLLM(Own(), record, "Own"), record


def test_an_llm_object_may_return_a_text_or_a_completion() -> None:
    assert llm_replying("so")[0].complete("?") == Completion("so")
    llm, record = llm_replying(Completion("x", 7, 3))
    assert llm.complete("?") == Completion("x", 7, 3)
    (row,) = record.read_costs()
    assert (row.model, row.error, row.money, row.prompt_tokens) == ("Own", "", 0.0, 7)


SECRET = "sk-" + "a1B2" * 8


@pytest.mark.parametrize(
    ("reply", "passed_on", "message"),
    [
        (TimeoutError("read\ntimed out"), LLMError, "TimeoutError: read timed out"),
        (SystemExit("quota"), LLMError, "SystemExit: quota"),
        (LLMError(f"401 for {SECRET}"), LLMError, "401 for ***"),
        (ConfigError("correct it"), ConfigError, "correct it"),
        (None, LLMError, "Own.complete(prompt) returned NoneType; expected a text or"),
    ],
)
def test_what_an_llm_object_raises_is_settled(
    reply: Any, passed_on: type[Exception], message: str
) -> None:
    llm, record = llm_replying(reply)
    with pytest.raises(passed_on) as caught:
        llm.complete("?")
    (row,) = record.read_costs()
    assert str(caught.value).startswith(message)
    assert row.error.startswith(message)


def test_a_metered_llm_is_identified_as_its_own_author_says() -> None:
    class Mine(ScriptedLLM):
        identity, origin = "model-b", "mine"

        def state_dict(self) -> State:
            return {"proposed": 3}

    record = Record()
    llm = MeteredLLM(Mine([]), record, "Mine")
    assert (llm.identity, llm.origin) == ("model-b", "mine")
    assert llm_state(llm) == {"proposed": 3}
    assert llm_state(MeteredLLM(ScriptedLLM([]), record, "ScriptedLLM")) is None
    assert MeteredLLM(ScriptedLLM([]), record, "ScriptedLLM").identity == "ScriptedLLM"
    assert MeteredLLM(Mine([]), record, "Mine", "given").identity == "given"


NAMES = st.sampled_from(["choices", "message", "content", "usage", "prompt_tokens"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(NAMES, parts, max_size=4),
)


@given(reply=JSON, content=JSON, usage=JSON)
def test_a_reply_is_usable_exactly_when_it_has_text(
    reply: object, content: object, usage: object
) -> None:
    outcome = parse_reply(json.dumps(reply))
    assert bool(outcome.error) != bool(outcome.text)
    body = json.dumps({"choices": [{"message": {"content": content}}], "usage": usage})
    outcome = parse_reply(body)
    usable = isinstance(content, str) and bool(content.strip())
    assert (outcome.error == "") == usable
    assert bool(outcome.text) == usable
    outcome.text.encode()
