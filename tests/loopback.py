"""A server on loopback that answers JSON with JSON."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def answering(
    answer: Callable[[str, Any], tuple[int, object]], headers: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Give the address while it answers; `answer` gets a request's path and body, and returns status and body.

    A GET has the body None; `headers` are sent with every answer.
    """

    def handle(request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length", 0))
        status, body = answer(request.path, json.loads(request.rfile.read(length) or "null"))
        payload = json.dumps(body).encode()
        request.send_response(status)
        for name, value in (headers or {}).items():
            request.send_header(name, value)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(payload)))
        request.end_headers()
        request.wfile.write(payload)

    with serving(handle) as url:
        yield url


@contextmanager
def serving(handle: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """Give the address while each request, GET or POST, is handled."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def endpoint(reply: Callable[[str], str]) -> Iterator[str]:
    """An OpenAI-compatible endpoint's base URL; `reply` is given the last message of a request."""

    def answer(path: str, request: Any) -> tuple[int, object]:
        message = {"role": "assistant", "content": reply(request["messages"][-1]["content"])}
        return 200, {
            "id": "1", "object": "chat.completion", "created": 1, "model": request["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }  # fmt: skip

    with answering(answer) as url:
        yield f"{url}/v1"


@contextmanager
def retrieval_server(find: Callable[[str], list[str]]) -> Iterator[str]:
    """The address of Search-R1's `/retrieve`; `find` gives the `contents` of the passages of a query."""

    def answer(path: str, request: Any) -> tuple[int, object]:
        passages = (find(query)[: request["topk"]] for query in request["queries"])
        result = [
            [{"document": {"id": "0", "contents": text}, "score": 1.0} for text in texts]
            for texts in passages
        ]
        return 200 if path == "/retrieve" else 404, {"result": result}

    with answering(answer) as url:
        yield f"{url}/retrieve"
