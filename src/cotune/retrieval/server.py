"""A retrieval server with Search-R1's `/retrieve`, over an index on disk."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `retrieve`.

import asyncio
import json
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from cotune.contracts import ConfigError
from cotune.retrieval.documents import Document

if TYPE_CHECKING:
    from fastapi import FastAPI

_GRACE_S = 10
_CONNECTIONS = 1024
BACKLOG = 2048
"""Connections that may wait to be accepted: uvicorn's own number."""

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
        body_bytes: of the request.
    """

    queries: int = 16_384
    query_chars: int = 32_768
    top_k: int = 100
    body_bytes: int = 64 * 2**20


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`, as Search-R1 defines it.

    Attributes:
        queries: texts to search for.
        topk: passages of each; None is the server's own number.
        return_scores: whether each document comes with its score.
    """

    model_config = ConfigDict(strict=True)

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class Batcher:
    """Answers requests in one thread; those that wait for it meanwhile are answered together.

    Together means: in one call of the index where they ask for equally many passages. A lone
    request is not kept waiting for others.

    Args:
        search: the index; called in one thread.
        largest: queries of one call, unless a single request has more.
    """

    def __init__(
        self, search: Callable[[Sequence[str], int], list[list[Document]]], largest: int = 2048
    ) -> None:
        self._search, self._largest = search, largest
        self._waiting: deque[tuple[Sequence[str], int, asyncio.Future[list[list[Document]]]]] = (
            deque()
        )
        self._thread = ThreadPoolExecutor(1, "retrieval")
        self._task: asyncio.Task[None] | None = None

    async def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """As the index's."""
        answer: asyncio.Future[list[list[Document]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((queries, top_k, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._next()
            queries = [query for some, _, _ in batch for query in some]
            try:
                found = iter(
                    await loop.run_in_executor(self._thread, self._search, queries, batch[0][1])
                )
            except Exception as error:  # noqa: BLE001 - each request answers for itself
                for _, _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for some, _, answer in batch:
                rows = [next(found) for _ in some]
                if not answer.done():  # whoever asked may be gone
                    answer.set_result(rows)

    def _next(self) -> list[tuple[Sequence[str], int, asyncio.Future[list[list[Document]]]]]:
        """The request that has waited longest, and those behind it that fit to it."""
        batch = [self._waiting.popleft()]
        size = len(batch[0][0])
        while self._waiting and self._waiting[0][1] == batch[0][1]:
            size += len(self._waiting[0][0])
            if size > self._largest:
                break
            batch.append(self._waiting.popleft())
        return batch


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
    app.add_middleware(_BodyLimit, limit=bounds.body_bytes)

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest) -> Response:  # pyright: ignore[reportUnusedFunction]
        asked = top_k if request.topk is None else request.topk
        if refusal := _refusal(request.queries, asked, bounds):
            raise HTTPException(422, refusal)
        found = await batcher.documents(request.queries, asked)
        body = json.dumps({"result": [_row(row, request.return_scores) for row in found]})
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
    longest = max(map(len, queries), default=0)
    if longest > limits.query_chars:
        return f"a query of {longest} characters; expected at most {limits.query_chars}"
    return ""


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
    """Serves until SIGINT or SIGTERM; requests under way are answered first.

    Raises:
        KeyboardInterrupt: it was SIGINT.
    """
    import uvicorn

    class Server(uvicorn.Server):
        """Remembers SIGINT: where a shell started it in the background, Python ignores that."""

        interrupted = False

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.interrupted |= sig == signal.SIGINT
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=BACKLOG,
        limit_concurrency=_CONNECTIONS,
    )
    server = Server(config)
    server.run(sockets=[listening])
    if server.interrupted:
        raise KeyboardInterrupt
