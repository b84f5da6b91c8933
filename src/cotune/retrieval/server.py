"""A retrieval server with Search-R1's `/retrieve`, over an index on disk."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `retrieve`.

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from cotune.data.documents import Document
from cotune.errors import ConfigError
from cotune.retrieval.batching import Batcher, StoppingError

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 7.0
"""For requests under way at the end; uvicorn then has two seconds, and ten all in all are not over."""
_CONNECTIONS = 1024
BACKLOG = 2048
"""Connections that may wait to be accepted: uvicorn's own number."""

_T = TypeVar("_T")
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Index(Protocol):
    """What is served: `StoredIndex` is one."""

    manifest: dict[str, Any]

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one request may ask for; status 422, or 413 of its size, where it asks for more.

    Attributes:
        queries: in one request. Search-R1 sends a whole batch at once.
        query_chars: of one query.
        top_k: passages of a query.
        passages: of all queries together.
        body_bytes: of the request.
    """

    queries: int = 16_384
    query_chars: int = 32_768
    top_k: int = 100
    passages: int = 65_536
    body_bytes: int = 64 * 2**20


def _without_surrogates(value: object) -> object:
    """Lone surrogates are legal in JSON, but have no UTF-8 form: "?", as the client sends them."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`, as Search-R1 defines it.

    Attributes:
        queries: texts to search for.
        topk: passages of each; None is the server's own number.
        return_scores: whether each document comes with its score.
    """

    model_config = ConfigDict(strict=True)

    queries: list[Annotated[str, BeforeValidator(_without_surrogates)]]
    topk: int | None = None
    return_scores: bool = False


def create_app(index: Index, top_k: int = 3, limits: ServerLimits | None = None) -> "FastAPI":
    """The server: `POST /retrieve` and `GET /health`.

    Args:
        index: what is searched.
        top_k: passages of a query where a request does not say.
        limits: of one request.
    """
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response

    bounds = ServerLimits() if limits is None else limits
    app, batcher = FastAPI(title="cotune retrieval"), Batcher(index.documents)
    app.state.batcher = batcher
    app.add_middleware(_BodyLimit, limit=bounds.body_bytes)

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest, http: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        asked = top_k if request.topk is None else request.topk
        if refusal := _refusal(request.queries, asked, bounds):
            raise HTTPException(422, refusal)
        try:
            found = await _unless_gone(http.receive, batcher.documents(request.queries, asked))
            if found is None:
                return Response(status_code=499)  # nobody reads it
            body = await batcher.thread.run(_body, found, request.return_scores)
        except StoppingError:
            return JSONResponse({"detail": "the server is stopping"}, 503)
        return Response(body, media_type="application/json")

    @app.get("/health")
    async def health() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        kind = index.manifest.get("kind")
        return {"status": "ok", "kind": kind, "passages": len(index), "topk": top_k}

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{place}: {first['msg']}"}, 422)

    return app


def _refusal(queries: Sequence[str], top_k: int, limits: ServerLimits) -> str:
    """Why a request is not answered, in one line; "" if it is."""
    if len(queries) > limits.queries:
        return f"{len(queries)} queries; expected at most {limits.queries} in a request"
    if not 1 <= top_k <= limits.top_k:
        return f"topk is {top_k}; expected 1 to {limits.top_k}"
    if len(queries) * top_k > limits.passages:
        return (
            f"{len(queries)} queries with topk {top_k}; expected at most {limits.passages} passages "
            "in a request"
        )
    longest = max(map(len, queries), default=0)
    if longest > limits.query_chars:
        return f"a query of {longest} characters; expected at most {limits.query_chars}"
    return ""


async def _unless_gone(receive: _Receive, work: Coroutine[Any, Any, _T]) -> _T | None:
    """What work gives; None, and it is cancelled, where the client goes before."""
    answer = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _body(found: Sequence[Sequence[Document]], scores: bool) -> str:
    return json.dumps({"result": [_row(row, scores) for row in found]})


def _row(documents: Sequence[Document], scores: bool) -> list[dict[str, Any]]:
    plain = [{"id": d.id, "contents": d.contents} for d in documents]
    if not scores:
        return plain
    return [
        {"document": fields, "score": document.score}
        for fields, document in zip(plain, documents, strict=True)
    ]


class _BodyLimit:
    """Reads a request's body before anything else does, and answers 413 to one that is too large."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._limit:
                await _too_large(send, self._limit)
                return
        whole: list[_Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> _Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)


async def _too_large(send: _Send, limit: int) -> None:
    body = json.dumps({"detail": f"a request of more than {limit} bytes"}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def reserve(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that a busy port shows before an index is built.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port: {host}:{port} cannot be listened on "
            f"({getattr(error, 'strerror', None) or error}); choose another --port or --host"
        ) from error
    return found


def serve(app: "FastAPI", listening: socket.socket) -> None:
    """Serves until SIGINT or SIGTERM; requests under way are answered first, if they can be within
    seconds, and with status 503 otherwise.

    Where a call of the index runs on after SIGINT, this ends the process.

    Raises:
        KeyboardInterrupt: it was SIGINT.
    """
    import uvicorn

    batcher: Batcher = app.state.batcher

    class Server(uvicorn.Server):
        """Remembers SIGINT: where a shell started it in the background, Python ignores that."""

        interrupted = False

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.interrupted |= sig == signal.SIGINT
            super().handle_exit(sig, frame)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            ending = asyncio.create_task(self._end_of_grace())
            await super().shutdown(sockets)
            ending.cancel()
            # What is cancelled from here on was told so, or is past waiting for: no tracebacks.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)

        async def _end_of_grace(self) -> None:
            await asyncio.sleep(_GRACE_S)
            batcher.stop()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(_GRACE_S) + 2,
        backlog=BACKLOG,
        limit_concurrency=_CONNECTIONS,
    )
    server = Server(config)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn's way to hand SIGINT on
        server.interrupted = True
    if server.interrupted and batcher.thread.busy:
        # The interpreter's own end would stop that thread within a library, which may abort.
        print("cotune: stopped", file=sys.stderr, flush=True)
        os._exit(130)
    if server.interrupted:
        raise KeyboardInterrupt
