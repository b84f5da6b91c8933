"""Retrieval over HTTP, from a server that speaks Search-R1's `/retrieve`.

A request is `{"queries": […], "topk": k, "return_scores": true}`, the reply `{"result": [[{"document":
{"id", "contents"}, "score"}, …], …]}`. A server is not trusted: a reply is cut off at a size, a
request at a time, redirects are not followed, and what comes is checked before it is used.
"""

import asyncio
import json
import math
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from cotune.data.documents import STYLES, Document, Style
from cotune.errors import ConfigError, RetrievalError
from cotune.retrieval.replies import read_reply

_T = TypeVar("_T")
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
        retries: further attempts of a request after the first one failed.
        batch_size: queries of one request.
        max_bytes: size that a reply may have.
        concurrency: requests of one search that are under way at once.
        max_query_chars: what of a query is sent, from its start.
        environment_proxies: whether HTTP_PROXY and the like are heeded.
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
        _check_url(self.url)
        _check_range("timeout_s", self.timeout_s, 0.01, 3600.0)
        _check_range("retries", self.retries, 0, 20)
        _check_range("batch_size", self.batch_size, 1, 2**16)
        _check_range("max_bytes", self.max_bytes, 1024, 2**31)
        _check_range("concurrency", self.concurrency, 1, 256)
        _check_range("max_query_chars", self.max_query_chars, 1, 2**20)


def _check_url(text: str) -> None:
    try:
        url = urlsplit(text)
        _ = url.port  # ValueError where it is none
        plain = not (url.username or url.password or url.query or url.fragment)
        good = url.scheme in ("http", "https") and bool(url.hostname) and plain and text.isascii()
    except ValueError:
        good = False
    if not good or any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError(
            "url is not of the form http(s)://host[:port]/retrieve, without user, password, query "
            "or fragment (what came is not shown: it may hold a password)"
        )


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}, expected {low} to {high}")


@dataclass(frozen=True, slots=True)
class RetrievalCounts:
    """What was asked of a server so far.

    Attributes:
        calls: searches, each of a batch of queries.
        failures: those of them that ended in a RetrievalError.
        queries: queries of all searches; equal ones of a search are sent once.
        failed_queries: queries of the searches that failed.
        requests: HTTP requests, retries included.
        retries: requests that repeated a failed one.
        seconds: wall time of all searches, summed.
    """

    calls: int = 0
    failures: int = 0
    queries: int = 0
    failed_queries: int = 0
    requests: int = 0
    retries: int = 0
    seconds: float = 0.0


class RemoteRetriever:
    """A `Retriever` at a server with Search-R1's interface.

    Broken connections, time-outs and the statuses 429 and 5xx are tried again, in `_request` and
    nowhere else, after a wait that doubles (and is as long as a Retry-After of up to 30 s). Other
    statuses, redirects, replies that are too large and replies that do not fit the request are
    final. If one request of a search fails for good, so does the search.

    Can be used by several threads and event loops at once.

    Args:
        options: the server and its limits.
        style: how documents become text in `search`: a name of `documents.STYLES`.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        options: RemoteOptions,
        style: Style = "cotune",
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options, self._style, self._sleep = options, STYLES[style], sleep
        self._lock, self._counts = threading.Lock(), RetrievalCounts()
        self._tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"RemoteRetriever({self._options!r})"

    @property
    def counts(self) -> RetrievalCounts:
        """What was asked so far; a copy that does not change."""
        with self._lock:
            return self._counts

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """The passages of each query as text, best first, at most `top_k`.

        Raises:
            RetrievalError: the server is down, too slow, refuses, or sends no usable reply.
        """
        return [self._style(found) for found in self.documents(queries, top_k)]

    def documents(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """The documents of each query, best first, at most `top_k`. Raises as `search`."""
        return _run(lambda: self.adocuments(queries, top_k))

    async def asearch(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """`search`, awaited."""
        return [self._style(found) for found in await self.adocuments(queries, top_k)]

    async def adocuments(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """`documents`, awaited."""
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; expected at least 1")
        if not queries:
            return []
        sent = [self._as_sent(query) for query in queries]
        started, failed = time.monotonic(), True
        try:
            found = await self._fetch(list(dict.fromkeys(sent)), top_k)
            failed = False
        finally:
            self._count(
                calls=1,
                queries=len(queries),
                failures=int(failed),
                failed_queries=len(queries) if failed else 0,
                seconds=time.monotonic() - started,
            )
        return [list(found[query]) for query in sent]

    def check(self) -> None:
        """Asks for one passage, so that a wrong address shows before anything is spent.

        Raises:
            ConfigError: no usable reply came.
        """
        try:
            self.documents(["test"], 1)
        except RetrievalError as error:
            raise ConfigError(
                f"environment.retriever.url: {error}; start the server (cotune serve-retriever, or "
                "Search-R1's own) or correct the address"
            ) from error

    def _as_sent(self, query: str) -> str:
        """A query within the limit; lone surrogates have no UTF-8 form, and servers refuse them."""
        return query[: self._options.max_query_chars].encode("utf-8", "replace").decode()

    def _count(self, **more: float) -> None:
        with self._lock:
            was = self._counts
            self._counts = replace(
                was, **{name: getattr(was, name) + value for name, value in more.items()}
            )

    async def _fetch(self, queries: list[str], top_k: int) -> dict[str, list[Document]]:
        """The documents of distinct queries, `batch_size` a request."""
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
                # The first failure ends the search: no request may outlive it.
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        rows = [row for reply in replies for row in reply]
        return dict(zip(queries, rows, strict=True))

    def _client(self, timeout: Any) -> Any:
        """RetrievalError where the environment's proxies cannot be used."""
        import httpx

        try:
            return httpx.AsyncClient(
                timeout=timeout,
                verify=self._tls_context(),
                follow_redirects=False,
                trust_env=self._options.environment_proxies,
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            # The message is httpx's, which may quote an address with its password.
            raise self._error(
                f"the environment's proxy cannot be used ({type(error).__name__}); correct "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, set environment_proxies: false, or for SOCKS "
                "pip install 'httpx[socks]'"
            ) from error

    def _tls_context(self) -> ssl.SSLContext:
        """Made once: reading the certificates takes longer than a search. Unused over http."""
        if self._tls is None:
            https = self._options.url.startswith("https")
            self._tls = (
                ssl.create_default_context() if https else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
        return self._tls

    async def _request(self, client: Any, queries: list[str], top_k: int) -> list[list[Document]]:
        """One batch, with all its attempts."""
        body = json.dumps({"queries": queries, "topk": top_k, "return_scores": True}).encode()
        attempts = 0
        while True:
            attempts += 1
            self._count(requests=1, retries=int(attempts > 1))
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
        """The reply's bytes, whole and within the limits; _FailureError if they do not come."""
        import httpx

        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        seconds = self._options.timeout_s
        try:
            # httpx limits each read; this limits them all, so that a server that drips ends, too.
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", self._options.url, content=body, headers=headers) as response,
            ):
                _check_head(response.status_code, response.headers, self._options.max_bytes)
                return await self._body(response)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise _FailureError(f"no whole reply within {seconds:g} s") from error
        except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise _FailureError(reason, final=isinstance(error, httpx.InvalidURL)) from error

    async def _body(self, response: Any) -> bytes:
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > self._options.max_bytes:
                raise _too_large(self._options.max_bytes)
        return bytes(data)


class _FailureError(Exception):
    """An attempt without a usable reply; `final` if another one would fare no better."""

    def __init__(self, what: str, final: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(what)
        self.final, self.retry_after = final, retry_after


def _too_large(limit: int) -> _FailureError:
    return _FailureError(f"the reply is larger than {limit} bytes (max_bytes)", final=True)


def _check_head(status: int, headers: Any, max_bytes: int) -> None:
    """Status and headers of a reply; _FailureError unless its body is worth reading."""
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
    """A Retry-After in seconds; 0 for none and for a date."""
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _wait_seconds(attempts: int, retry_after: float) -> float:
    """Doubling, with jitter so that ranks do not come back together; as long as was asked for."""
    backoff = _FIRST_WAIT_S * 2 ** (attempts - 1) * (0.5 + random.random() / 2)
    return min(_MAX_WAIT_S, max(backoff, retry_after))


def _run(start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Runs a coroutine to its end, in a thread of its own where this one has a loop running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(start())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(start())).result()
