"""`cotune serve-retriever`: Search-R1's `/retrieve` as a FastAPI app over an index on disk."""

# No `from __future__ import annotations` here: FastAPI reads the annotations of `retrieve`.

import asyncio
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict
from rich.console import Console
from rich.markup import escape

from cotune.data.corpus import Document, Language
from cotune.errors import ConfigError, Stopped
from cotune.retrieval.dense import DEFAULT_MODEL, EncoderOptions
from cotune.retrieval.index import (
    TITLE_WEIGHT,
    IndexOptions,
    StoredIndex,
    build_index,
    default_folder,
    language_of,
    open_index,
)
from cotune.utils.text import encodable

if TYPE_CHECKING:
    from fastapi import FastAPI

_EXTRAS = {
    "retrieval-server": ("fastapi", "uvicorn"),
    "dense": ("sentence_transformers", "faiss"),
}
_GRACE_S = 7
"""Seconds that requests in progress have to finish when the server is stopped."""
_POLL_S = 0.5
"""Seconds between checks that a waiting client is still connected."""
_JOINED = 2048
"""The most queries for which waiting requests are joined into one search."""
_CONNECTIONS = 1024
_BACKLOG = 2048

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class Index(Protocol):
    """The index that is served, such as `StoredIndex`."""

    manifest: dict[str, Any]

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of one request; beyond them it gets status 422, or 413 if its body is too large.

    Attributes:
        queries: number of queries; Search-R1 sends a whole batch at once.
        query_chars: length of one query.
        top_k: passages for each query.
        passages: passages for all queries together.
        body_bytes: size of the body.
    """

    queries: int = 16_384
    query_chars: int = 32_768
    top_k: int = 100
    passages: int = 65_536
    body_bytes: int = 64 * 2**20

    def refusal(self, queries: Sequence[str], top_k: int) -> str:
        """Return why a request is rejected, in one line; "" if it is not."""
        if len(queries) > self.queries:
            return f"{len(queries)} queries; expected at most {self.queries} in a request"
        if not 1 <= top_k <= self.top_k:
            return f"topk is {top_k}; expected 1 to {self.top_k}"
        if len(queries) * top_k > self.passages:
            return (
                f"{len(queries)} queries with topk {top_k}; expected at most {self.passages} "
                "passages in a request"
            )
        longest = max(map(len, queries), default=0)
        if longest > self.query_chars:
            return f"a query of {longest} characters; expected at most {self.query_chars}"
        return ""


def _encodable(value: object) -> object:
    return encodable(value) if isinstance(value, str) else value


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`, as Search-R1 defines it.

    Attributes:
        queries: texts to search for.
        topk: passages for each query; None and 0 are the server's default, as in Search-R1.
        return_scores: whether each document comes with its score.
    """

    model_config = ConfigDict(strict=True)

    queries: list[Annotated[str, BeforeValidator(_encodable)]]
    topk: int | None = None
    return_scores: bool = False


def create_app(index: Index, top_k: int = 3, limits: ServerLimits | None = None) -> "FastAPI":
    """Return the app with `POST /retrieve` and `GET /health`.

    Args:
        index: the index to search.
        top_k: passages for each query if a request does not say.
        limits: limits of one request.
    """
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, Response

    bounds = limits or ServerLimits()
    searches = SearchThread(index.documents)
    app = FastAPI(title="cotune retrieval")
    app.state.searches = searches
    app.add_middleware(_BodyLimit, limit=bounds.body_bytes)

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest, http: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        asked = body.topk or top_k
        if refusal := bounds.refusal(body.queries, asked):
            raise HTTPException(422, refusal)
        search = asyncio.wrap_future(searches.submit(body.queries, asked))
        try:
            while not (await asyncio.wait([search], timeout=_POLL_S))[0]:
                if await http.is_disconnected():
                    search.cancel()
                    return Response(status_code=499)  # the client is gone
        except asyncio.CancelledError:  # uvicorn, after the time to finish
            search.cancel()
            raise HTTPException(503, "the server is stopping") from None
        rows = [_row(found, body.return_scores) for found in search.result()]
        return JSONResponse({"result": rows})

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


def _row(documents: Sequence[Document], scores: bool) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = [{"id": d.id, "contents": d.contents} for d in documents]
    if not scores:
        return plain
    return [
        {"document": fields, "score": document.score}
        for fields, document in zip(plain, documents, strict=True)
    ]


class _BodyLimit:
    """Middleware that answers 413 to a body that is too large, without reading all of it."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        from fastapi import HTTPException

        size = 0

        async def limited() -> _Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                detail = f"a request of more than {self._limit} bytes"
                raise HTTPException(413, detail, {"connection": "close"})
            return message

        await self._app(scope, limited, send)


@dataclass(frozen=True)
class _Request:
    queries: Sequence[str]
    top_k: int
    found: "Future[list[list[Document]]]" = field(default_factory=Future[Any])


class SearchThread:
    """Search an index in one thread; requests that wait meanwhile are searched together.

    A single waiting request is not delayed. When many wait, their short queries share a forward pass of
    a dense index's encoder: with all-MiniLM-L6-v2 on a CPU, encoding takes 20 ms per single query and
    4 ms per query in batches of 32. BM25 gains little. A request that is cancelled before its search
    begins is not searched.

    Args:
        search: returns the documents of each query.
    """

    def __init__(self, search: Callable[[Sequence[str], int], list[list[Document]]]) -> None:
        self._search = search
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self.busy = False
        # A daemon, so that a long search does not delay the end of the process.
        threading.Thread(target=self._work, name="retrieval", daemon=True).start()

    def submit(self, queries: Sequence[str], top_k: int) -> "Future[list[list[Document]]]":
        """Return a future of the documents of each query."""
        request = _Request(queries, top_k)
        self._requests.put(request)
        return request.found

    def _work(self) -> None:
        while True:
            self.busy = False
            waiting = [self._requests.get()]
            self.busy = True
            size = len(waiting[0].queries)
            while size < _JOINED and not self._requests.empty():
                waiting.append(self._requests.get())
                size += len(waiting[-1].queries)
            wanted = [r for r in waiting if r.found.set_running_or_notify_cancel()]
            for top_k, group in groupby(wanted, lambda request: request.top_k):
                self._answer(list(group), top_k)

    def _answer(self, requests: Sequence[_Request], top_k: int) -> None:
        try:
            rows = self._search([query for r in requests for query in r.queries], top_k)
        except Exception as error:  # noqa: BLE001 - it is raised in the request
            if len(requests) == 1:
                requests[0].found.set_exception(error)
                return
            for request in requests:  # so that only the faulty one fails
                self._answer([request], top_k)
            return
        start = 0
        for request in requests:
            end = start + len(request.queries)
            request.found.set_result(rows[start:end])
            start = end


def reserve(host: str, port: int) -> socket.socket:
    """Bind a socket without listening, so that a busy port is reported before an index is built.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        raise _busy(host, port, error) from error
    return found


def _busy(host: str, port: int, error: OSError | OverflowError) -> ConfigError:
    return ConfigError(
        f"--port: cannot listen on {host}:{port} "
        f"({getattr(error, 'strerror', None) or error}); choose another --port or --host"
    )


def serve(app: "FastAPI", listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM.

    Requests in progress have `_GRACE_S` seconds to finish, then they get status 503. If a search is
    still running after SIGINT, this ends the process with status 130.

    Raises:
        KeyboardInterrupt: on SIGINT.
    """
    import uvicorn

    # uvicorn raises the signal again at the end; a shell's background jobs inherit SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        if app.state.searches.busy:
            # A normal exit would stop the thread inside a library, which may abort.
            print("cotune: stopped", file=sys.stderr, flush=True)
            os._exit(130)
        raise


def serve_retriever(
    corpus: Path,
    folder: Path | None,
    options: IndexOptions,
    console: Console,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    top_k: int = 3,
) -> None:
    """Serve an index of a corpus until a signal; build the index first if it does not exist.

    Args:
        corpus: the JSONL file (`read_corpus`).
        folder: the index; None is `default_folder`.
        options: how the corpus is indexed.
        console: where progress is printed.
        host, port: the address; port 0 takes a free one.
        top_k: passages for each query if a request does not say.

    Raises:
        ConfigError: the corpus, the index, the address or the installed packages do not fit.
        Stopped: Ctrl-C.
    """
    require("retrieval-server", "cotune serve-retriever")
    if options.kind == "dense":
        require("dense", "--index dense")
    limits = ServerLimits()
    if not 1 <= top_k <= limits.top_k:
        raise ConfigError(f"--topk is {top_k}; expected 1 to {limits.top_k}")
    try:
        with reserve(host, port) as listening:
            index = _index(corpus, folder or default_folder(corpus, options.kind), options, console)
            try:
                listening.listen(_BACKLOG)  # from here on requests wait instead of being refused
            except OSError as error:  # another server was bound to it too, and was faster
                raise _busy(host, port, error) from error
            shown = f"[{host}]" if ":" in host else host
            console.print(
                f"serving {len(index)} passages ({_kind(index)}) on "
                f"http://{shown}:{listening.getsockname()[1]}/retrieve; press Ctrl-C to stop",
                markup=False,
                soft_wrap=True,
                highlight=False,
            )
            serve(create_app(index, top_k, limits), listening)
    except KeyboardInterrupt:
        raise Stopped("stopped") from None


def _kind(index: StoredIndex) -> str:
    dense = index.manifest["kind"] == "dense"
    return "dense" if dense else f"bm25, language {language_of(index.manifest)}"


def index_options(
    kind: str,
    title_weight: int | None,
    model: str | None,
    query_prefix: str | None,
    passage_prefix: str | None,
    language: str | None = None,
) -> IndexOptions:
    """Return the options given on the command line.

    Raises:
        ConfigError: an unknown kind, or an option of a dense index with another kind.
    """
    if kind == "dense":
        for name, value in (("language", language), ("title-weight", title_weight)):
            if value is not None:
                raise ConfigError(f"--{name}: only for --index bm25; drop it")
        encoder = EncoderOptions(
            model=model or DEFAULT_MODEL, query_prefix=query_prefix, passage_prefix=passage_prefix
        )
        return IndexOptions(kind="dense", encoder=encoder)
    if kind != "bm25":
        raise ConfigError(f"--index is {kind!r}; expected bm25 or dense")
    if language is not None and language not in get_args(Language):
        raise ConfigError(
            f"--language is {language!r}; expected one of {', '.join(get_args(Language))}"
        )
    given = {"model": model, "query-prefix": query_prefix, "passage-prefix": passage_prefix}
    names = ", ".join(f"--{name}" for name, value in given.items() if value is not None)
    if names:
        raise ConfigError(f"{names}: only for --index dense; add that or drop it")
    weight = TITLE_WEIGHT if title_weight is None else title_weight
    return IndexOptions(title_weight=weight, language=cast("Language | None", language))


def require(extra: str, what: str) -> None:
    """Raise ConfigError with the pip command if a package of an extra is not installed."""
    missing = [name for name in _EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{what} needs {' and '.join(missing)}, not installed; pip install 'cotune[{extra}]'"
        )


def _index(corpus: Path, folder: Path, options: IndexOptions, console: Console) -> StoredIndex:
    """Open the index of a folder; build it if there is none."""
    if options.kind == "dense":
        # Must be set before the libraries are imported: no progress bar for each file of a model.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    if not folder.exists():
        started = time.monotonic()
        console.print(f"indexing {escape(str(corpus))} into {escape(str(folder))}", soft_wrap=True)
        with console.status("reading") as status:
            build_index(
                corpus,
                folder,
                options,
                lambda done, count: status.update(f"{done} of {count} passages"),
            )
        console.print(f"indexed in {time.monotonic() - started:.0f} s", highlight=False)
    return open_index(folder, corpus, options)
