"""The client of a retrieval server, against servers that misbehave in every way."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cotune.errors import RetrievalError
from cotune.retrieval import remote
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever, format_passage
from tests.helpers import raises_line

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


def retriever(retries: int = 0) -> RemoteRetriever:
    return RemoteRetriever(RemoteOptions(url=URL), retries=retries)


def test_passages_as_a_policy_reads_them(server: Server) -> None:
    passages = retriever().search(["a"], 2)
    assert passages == [['(Title: "a") text 0', '(Title: "a") text 1']]
    assert format_passage("one line") == "(Title: one line) "
    assert server.requests[0] == {"queries": ["a"], "topk": 2, "return_scores": True}
    # Equal queries are sent once, and none makes no request.
    queries = [f"q{i % 3}" for i in range(7)]
    expected = [[f'(Title: "{query}") text 0'] for query in queries]
    assert retriever().search(queries, 1) == expected
    assert retriever().search([], 3) == []
    assert [request["queries"] for request in server.requests] == [["a"], ["q0", "q1", "q2"]]


def test_what_a_model_writes_and_a_server_sends_can_be_encoded(server: Server) -> None:
    reply = {"result": [[{"document": {"contents": text}} for text in ("\ud800 x", "b")]]}
    server.answers = [json.dumps(reply).encode()]
    assert retriever().search(["\ud800 a"], 1) == [["(Title: ? x) "]]
    assert server.requests[0]["queries"] == ["? a"]


@pytest.mark.parametrize(
    ("answer", "message", "attempts"),
    [
        # The same would come again.
        (b"", "JSONDecodeError: the reply begins b''; expected", 1),
        (b"[" * 100_000, "RecursionError", 1),
        (b'{"result": {}}', "0 results for 1 queries", 1),
        (b'{"result": [[{"document": {"contents": "' + b"x" * 9999 + b'"}}, 1]]}', "expected", 1),
        (302, "status 302: check the address; redirects are not followed", 1),
        (500, "status 500, in 9 attempt(s)", 9),
        (httpx.RemoteProtocolError("half a reply"), "RemoteProtocolError: half a reply, in 9 attempt(s)", 9),
        (httpx.ReadTimeout(""), "no reply within 60 s, in 9 attempt(s)", 9),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_and_tried_again_if_it_may_pass(
    answer: Any, message: str, attempts: int, server: Server
) -> None:
    server.answers = [answer]
    with raises_line(message, match=r"^.{,300}$", error=RetrievalError):
        retriever(retries=8).search(["a"], 2)
    assert len(server.requests) == attempts
    assert server.waits[-2:] == ([30.0, 30.0] if attempts > 1 else [])


def test_overload_is_tried_again_after_waits_that_double(server: Server) -> None:
    server.answers = [500, 429, 503, None]
    assert retriever(retries=3).search(["a"], 1) == [['(Title: "a") text 0']]
    assert server.waits == [0.5, 1, 2]


def test_a_check_asks_for_a_passage_at_most_twice(server: Server) -> None:
    retriever(retries=3).check()
    assert server.requests == [{"queries": ["test"], "topk": 1, "return_scores": True}]
    server.answers = [500]
    with raises_line("environment.retriever.url: ", " 2 attempt(s); start the"):
        retriever(retries=3).check()


def test_an_address_with_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="not of the form") as caught:
        RemoteOptions(url="http://me:secret@x/retrieve")
    assert "secret" not in str(caught.value)
