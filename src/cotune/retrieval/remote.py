"""The client of a retrieval server with Search-R1's `/retrieve`.

A request is `{"queries": […], "topk": k, "return_scores": true}`, the reply `{"result": [[{"document":
{"id", "contents"}, "score"}, …], …]}`. The server is not trusted: size and duration of a reply are
limited, redirects are not followed, and replies are checked before they are used.
"""

import asyncio
import json
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from cotune.data.corpus import STYLES, Document, Style, join_contents
from cotune.errors import ConfigError, RetrievalError
from cotune.utils.background import BackgroundLoop
from cotune.utils.option_checks import check_range, check_url
from cotune.utils.text import encodable, named

_LOOP = BackgroundLoop()
_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 30.0
_CONNECT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """`environment.retriever` of a run file, for a retrieval server.

    Attributes:
        kind: "remote".
        url: where queries are posted: http://127.0.0.1:8000/retrieve.
        timeout_s: seconds that one request may take, from connecting to the reply's last byte.
        retries: further attempts after the first one failed.
        batch_size: queries in one request.
        max_bytes: the largest reply that is accepted.
        concurrency: requests of one search that are sent at the same time.
        max_query_chars: longer queries are cut off.
        environment_proxies: whether HTTP_PROXY and similar variables are used.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    kind: Literal["remote"] = "remote"
    url: str
    timeout_s: float = 60.0
    retries: int = 3
    batch_size: int = 512
    max_bytes: int = 64 * 2**20
    concurrency: int = 4
    max_query_chars: int = 8192
    environment_proxies: bool = False

    def __post_init__(self) -> None:
        check_url("url", self.url, "/retrieve")
        check_range("timeout_s", self.timeout_s, 0.01, 3600)
        check_range("retries", self.retries, 0, 20)
        check_range("batch_size", self.batch_size, 1, 2**16)
        check_range("max_bytes", self.max_bytes, 1024, 2**31)
        check_range("concurrency", self.concurrency, 1, 256)
        check_range("max_query_chars", self.max_query_chars, 1, 2**20)


class RemoteRetriever:
    """A `Retriever` that asks a server with Search-R1's interface.

    Broken connections, timeouts and the statuses 429 and 5xx are retried (only in `_request`), after
    a wait that doubles, or after the time in Retry-After (up to 30 s). Other statuses, redirects,
    replies that are too large and replies that do not fit the request are final. A search fails if
    one of its requests does.

    Can be used by several threads and event loops at the same time.

    Args:
        options: the server and its limits.
        style: how documents become text in `search`: a name of `cotune.data.corpus.STYLES`.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        options: RemoteOptions,
        style: Style = "cotune",
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options, self._style, self._sleep = options, STYLES[style], sleep
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"RemoteRetriever({self._options!r})"

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return the passages of each query as text, best first, at most `top_k`.

        Raises:
            RetrievalError: the server is down, too slow, refuses, or sends no usable reply.
        """
        return [self._style(found) for found in self.documents(queries, top_k)]

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """Return the documents of each query, best first, at most `top_k`. Raises as `search`."""
        return _LOOP.run(self.adocuments(queries, top_k))

    async def asearch(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Await `search`."""
        return [self._style(found) for found in await self.adocuments(queries, top_k)]

    async def adocuments(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """Await `documents`."""
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; expected at least 1")
        if not queries:
            return []
        sent = [encodable(query[: self._options.max_query_chars]) for query in queries]
        found = await self._fetch(list(dict.fromkeys(sent)), top_k)
        return [list(found[query]) for query in sent]

    def check(self) -> None:
        """Request one passage, so that a wrong address is found before training starts.

        Raises:
            ConfigError: the server returned no usable reply.
        """
        try:
            self.documents(["test"], 1)
        except RetrievalError as error:
            raise ConfigError(
                f"environment.retriever.url: {error}; start the server, such as "
                "Search-R1's, or correct the address"
            ) from error

    async def _fetch(self, queries: list[str], top_k: int) -> dict[str, list[Document]]:
        """Return the documents of distinct queries, sent in requests of `batch_size`."""
        import httpx

        options = self._options
        size, slots = options.batch_size, asyncio.Semaphore(options.concurrency)
        batches = [queries[i : i + size] for i in range(0, len(queries), size)]
        timeout = httpx.Timeout(options.timeout_s, connect=min(_CONNECT_S, options.timeout_s))
        async with self._client(timeout) as client:

            async def one(batch: list[str]) -> list[list[Document]]:
                async with slots:
                    return await self._request(client, batch, top_k)

            tasks = [asyncio.create_task(one(batch)) for batch in batches]
            try:
                replies = await asyncio.gather(*tasks)
            finally:
                # The first failure ends the search; no request may outlive it.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        rows = [row for reply in replies for row in reply]
        return dict(zip(queries, rows, strict=True))

    def _client(self, timeout: Any) -> Any:
        """Raise RetrievalError if the environment's proxies cannot be used."""
        import httpx

        try:
            return httpx.AsyncClient(
                timeout=timeout,
                verify=self._tls_context(),
                follow_redirects=False,
                trust_env=self._options.environment_proxies,
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            # httpx's own message may quote an address with its password.
            raise self._error(
                f"the environment's proxy cannot be used ({type(error).__name__}); correct "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, set environment_proxies: false, or for SOCKS "
                "pip install 'httpx[socks]'"
            ) from error

    def _tls_context(self) -> ssl.SSLContext:
        """Create the context once: reading the certificates takes longer than a search."""
        if self._tls is None:
            https = self._options.url.startswith("https")
            self._tls = (
                ssl.create_default_context() if https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        return self._tls

    async def _request(self, client: Any, queries: list[str], top_k: int) -> list[list[Document]]:
        """Send one batch, with retries."""
        body = json.dumps({"queries": queries, "topk": top_k, "return_scores": True}).encode()
        attempts = 0
        while True:
            attempts += 1
            try:
                reply = await self._attempt(client, body)
            except _FailureError as failure:
                if failure.final or attempts > self._options.retries:
                    raise self._error(f"{failure}, in {attempts} attempt(s)") from failure
                await self._sleep(_wait_seconds(attempts, failure.retry_after))
            else:
                try:
                    return read_reply(reply, len(queries), top_k)
                except ValueError as error:
                    raise self._error(str(error)) from error

    def _error(self, reason: str) -> RetrievalError:
        return RetrievalError(f"the retrieval server {self._options.url}: {reason}")

    async def _attempt(self, client: Any, body: bytes) -> bytes:
        """Return the reply's bytes, complete and within the limits, or raise _FailureError."""
        import httpx

        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        seconds = self._options.timeout_s
        try:
            # httpx limits each read; this limits their sum, against a server that sends slowly.
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", self._options.url, content=body, headers=headers) as response,
            ):
                limit = self._options.max_bytes
                _check_head(response.status_code, response.headers, limit)
                data = bytearray()
                async for chunk in response.aiter_raw():
                    data += chunk
                    if len(data) > limit:
                        raise _too_large(limit)
                return bytes(data)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise _FailureError(f"no whole reply within {seconds:g} s") from error
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            reason = named(error)
            raise _FailureError(reason, final=isinstance(error, httpx.InvalidURL)) from error


class _FailureError(Exception):
    """An attempt without a usable reply; `final` if a retry would not help."""

    def __init__(self, what: str, final: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(what)
        self.final, self.retry_after = final, retry_after


def _too_large(limit: int) -> _FailureError:
    return _FailureError(f"the reply is larger than {limit} bytes (max_bytes)", final=True)


def _check_head(status: int, headers: Any, max_bytes: int) -> None:
    """Raise _FailureError if a reply's status or headers rule out a usable body."""
    if 300 <= status < 400:
        raise _FailureError(f"status {status}; redirects are not followed", final=True)
    if status == 429 or status >= 500:
        raise _FailureError(f"status {status}", retry_after=_seconds(headers.get("retry-after")))
    if status != 200:
        hint = " (is the address right? It ends in /retrieve)" if status in (404, 405) else ""
        raise _FailureError(f"status {status}{hint}", final=True)
    if headers.get("content-encoding", "identity") != "identity":
        raise _FailureError("a compressed reply, which was not asked for", final=True)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)


def _seconds(retry_after: str | None) -> float:
    """Return a Retry-After in seconds; 0 for none and for a date."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _wait_seconds(attempts: int, retry_after: float) -> float:
    """Double the wait each time, with jitter so that ranks do not retry at the same time."""
    backoff = _FIRST_WAIT_S * 2 ** (attempts - 1) * (0.5 + random.random() / 2)
    return min(_MAX_WAIT_S, max(backoff, retry_after))


def read_reply(data: bytes, queries: int, top_k: int) -> list[list[Document]]:
    """Parse a server's reply into the documents of each query.

    Accepted are Search-R1's `{"result": [[{"document": {"id", "contents"}, "score"}, …], …]}`, the
    same without scores (`[[{"id", "contents"}, …], …]`), and either list without the object around
    it. A document may have `title` and `text` instead of `contents`; one without `id` gets the id
    "". Documents beyond `top_k` are dropped.

    Raises:
        ValueError: anything else, or not one list for each of `queries` queries; one short line.
    """
    try:
        reply: object = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply is not JSON ({type(error).__name__})") from error
    if isinstance(reply, dict):
        reply = cast("dict[str, object]", reply).get("result")
    if not isinstance(reply, list):
        raise ValueError('the reply has no list "result"')
    rows = cast("list[object]", reply)
    if len(rows) != queries:
        raise ValueError(f"the reply has {len(rows)} results for {queries} queries")
    return [_row(row, number, top_k) for number, row in enumerate(rows)]


def _row(row: object, number: int, top_k: int) -> list[Document]:
    if not isinstance(row, list):
        raise ValueError(f"result {number} of the reply is not a list of documents")
    items = cast("Sequence[object]", row)[:top_k]
    try:
        return [_document(item) for item in items]
    except ValueError as error:
        raise ValueError(f"result {number} of the reply: {error}") from error


def _document(item: object) -> Document:
    outer = cast("Mapping[str, Any]", item) if isinstance(item, dict) else {"document": None}
    inner: object = outer.get("document", outer)
    if not isinstance(inner, dict):
        raise ValueError("a document is not an object")
    fields = cast("Mapping[str, Any]", inner)
    score, id = outer.get("score"), fields.get("id", "")
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise ValueError("an id is neither text nor integer")
    try:
        if isinstance(score, bool | str):
            raise TypeError
        number = None if score is None else float(score)
    except (TypeError, OverflowError) as error:
        raise ValueError("a score is not a number") from error
    return Document(encodable(str(id)), encodable(_contents(fields)), number)


def _contents(fields: Mapping[str, Any]) -> str:
    contents = fields.get("contents")
    if isinstance(contents, str):
        return contents
    title, text = fields.get("title", ""), fields.get("text")
    if contents is None and isinstance(title, str) and isinstance(text, str):
        return join_contents(title, text)
    raise ValueError('a document has no text "contents"')
