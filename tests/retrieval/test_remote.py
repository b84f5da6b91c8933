"""The client of a retrieval server, against servers that misbehave in every way."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError

from cotune.data.corpus import format_passage
from cotune.errors import ConfigError, RetrievalError
from cotune.retrieval import remote
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever

URL = "http://127.0.0.1:8000/retrieve"


class Server:
    """Stands in for `httpx.post`: gives one answer after the other, the last one again and again.

    An answer is a status, the bytes of a reply, an error, or None for documents that name their query.
    """

    def __init__(self) -> None:
        self.answers: Sequence[int | bytes | Exception | None] = [None]
        self.requests: list[dict[str, Any]] = []
        self.waits: list[float] = []

    def post(self, url: str, *, json: dict[str, Any], **options: Any) -> httpx.Response:
        assert url == URL
        # Certificates are for https only; no proxies of the environment, and httpx follows no redirects.
        assert options == {"timeout": 60.0, "verify": False, "trust_env": False}
        answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
        self.requests.append(json)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return httpx.Response(answer)
        if answer is None:
            return httpx.Response(200, json={"result": documents(json)})
        return httpx.Response(200, content=answer)


def documents(request: dict[str, Any]) -> list[list[dict[str, Any]]]:
    return [
        [{"document": {"contents": f'"{query}"\ntext {i}'}} for i in range(request["topk"])]
        for query in request["queries"]
    ]


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(httpx, "post", server.post)
    monkeypatch.setattr(remote, "sleep", server.waits.append)
    return server


def retriever(protocol: str = "tags", retries: int = 0) -> RemoteRetriever:
    return RemoteRetriever(RemoteOptions(url=URL), protocol, retries=retries)


def test_passages_and_their_two_written_forms(server: Server) -> None:
    for protocol in ("tags", "search-r1"):
        passages = retriever(protocol).search(["a"], 2)
        assert passages == [['(Title: "a") text 0', '(Title: "a") text 1']]
    assert format_passage("one line", "search-r1") == "(Title: one line) "
    assert format_passage("one line", "tags") == "one line"
    assert server.requests[0] == {"queries": ["a"], "topk": 2, "return_scores": True}


def test_equal_queries_are_sent_once_and_none_makes_no_request(server: Server) -> None:
    queries = [f"q{i % 3}" for i in range(7)]
    expected = [[f'(Title: "{query}") text 0'] for query in queries]
    assert retriever().search(queries, 1) == expected
    assert retriever().search([], 3) == []
    assert [request["queries"] for request in server.requests] == [["q0", "q1", "q2"]]


def test_what_a_model_writes_and_a_server_sends_can_be_encoded(server: Server) -> None:
    reply = {"result": [[{"document": {"contents": text}} for text in ("\ud800 x", "b")]]}
    server.answers = [json.dumps(reply).encode()]
    assert retriever().search(["\ud800 a"], 1) == [["? x"]]
    assert server.requests[0]["queries"] == ["? a"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "JSONDecodeError: the reply begins b''; expected"),
        (b"[" * 100_000, "RecursionError"),
        (b"null", "begins b'null'; expected"),
        (b'{"result": {}}', "0 results for 1 queries"),
        (b'{"result": [7]}', "expected"),
        (b'{"result": [[{"document": {"contents": null}}]]}', "expected"),
        (b'{"result": [[{"document": {"contents": "' + b"x" * 9999 + b'"}}, 1]]}', "expected"),
    ],
)
def test_garbage_is_one_line(data: bytes, message: str, server: Server) -> None:
    server.answers = [data]
    with pytest.raises(RetrievalError) as caught:
        retriever(retries=3).search(["a"], 2)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert len(server.requests) == 1  # the same would come again


def test_overload_is_tried_again_after_waits_that_double(server: Server) -> None:
    server.answers = [500, 429, 503, None]
    assert retriever(retries=3).search(["a"], 1) == [['(Title: "a") text 0']]
    assert server.waits == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (500, "status 500"),
        (httpx.RemoteProtocolError("half a reply"), "RemoteProtocolError: half a reply"),
        (httpx.ConnectError("refused"), "ConnectError: refused"),
        (httpx.ReadTimeout(""), "no reply within 60 s"),
    ],
)
def test_what_does_not_get_better_ends_after_the_retries(
    answer: Any, message: str, server: Server
) -> None:
    server.answers = [answer]
    with pytest.raises(RetrievalError, match=rf"{message}, in 9 attempt\(s\)"):
        retriever(retries=8).search(["a", "b"], 1)
    assert len(server.requests) == 9
    assert server.waits[-2:] == [30.0, 30.0]


@pytest.mark.parametrize("status", [204, 302, 404])
def test_what_is_final_is_not_tried_again(status: int, server: Server) -> None:
    server.answers = [status]
    with pytest.raises(RetrievalError, match=rf"status {status} \(is the address right.*redirects"):
        retriever(retries=3).search(["a"], 1)
    assert len(server.requests) == 1


def test_a_check_asks_for_a_passage_at_most_twice(server: Server) -> None:
    retriever(retries=3).check()
    assert server.requests == [{"queries": ["test"], "topk": 1, "return_scores": True}]
    server.answers = [500]
    with pytest.raises(
        ConfigError, match=r"environment\.retriever\.url: .* 2 attempt.*; start the"
    ):
        retriever(retries=3).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "ftp://x/retrieve"}, "not of the form"),
        ({"url": "http://me:secret@x/retrieve"}, "not of the form"),
        ({"url": "http://x/", "timeout_s": 0}, "timeout_s is 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        TypeAdapter(RemoteOptions).validate_python(options)
    assert "secret" not in str(caught.value.errors()[0]["msg"])
