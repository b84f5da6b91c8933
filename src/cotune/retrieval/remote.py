"""The client of a retrieval server with Search-R1's `/retrieve`.

A request is `{"queries": […], "topk": k, "return_scores": true}`, the reply `{"result": [[{"document":
{"contents"}, …}, …], …]}`. The server is not trusted: size and duration of a reply are limited, redirects
are not followed, and replies are checked before they are used.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cotune.data.corpus import shown_passage
from cotune.errors import ConfigError, RetrievalError
from cotune.utils.background import BackgroundLoop
from cotune.utils.option_checks import check_range, check_url
from cotune.utils.text import encodable, named

_LOOP = BackgroundLoop()
_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 30.0
_BATCH = 512
"""The most queries in one request."""
_QUERY_CHARS = 8192
"""Longer queries are cut off."""
_REPLY_BYTES = 64 * 2**20
"""The largest reply that is accepted."""
_HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
_FORM = '{"result": [[{"document": {"contents": "…"}}, …], …]}'


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """`environment.retriever` of a run file, for a retrieval server.

    Attributes:
        url: where queries are posted: http://127.0.0.1:8000/retrieve.
        timeout_s: seconds that one request may take, from connecting to the reply's last byte.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    url: str
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_url("url", self.url, "/retrieve")
        check_range("timeout_s", self.timeout_s, 0.01, 3600)


class RemoteRetriever:
    """A `Retriever` that asks a server with Search-R1's interface.

    Broken connections, timeouts and the statuses 429 and 5xx are retried, after a wait that doubles.
    Other statuses, redirects, replies that are too large and replies that do not fit the request are
    final. A search fails if one of its requests does. Proxies of the environment are not used.

    Can be used by several threads at the same time.

    Args:
        options: the server and its limits.
        protocol: how passages are written: "tags", or "search-r1" as Search-R1 does.
        retries: further attempts after the first one failed.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        options: RemoteOptions,
        protocol: str = "tags",
        *,
        retries: int = 3,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._options = options
        self._protocol = protocol
        self._retries = retries
        self._sleep = sleep

    def __repr__(self) -> str:
        return f"RemoteRetriever({self._options!r})"

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return the passages of each query as text, best first, at most `top_k`.

        Raises:
            RetrievalError: the server is down, too slow, refuses, or sends no usable reply.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; expected at least 1")
        sent = [encodable(query[:_QUERY_CHARS]) for query in queries]
        contents = _LOOP.run(self._fetch(list(dict.fromkeys(sent)), top_k))
        return [[shown_passage(text, self._protocol) for text in contents[query]] for query in sent]

    def check(self) -> None:
        """Request one passage, at most twice, so that a wrong address is found before training starts.

        Raises:
            ConfigError: the server returned no usable reply.
        """
        retries = min(self._retries, 1)
        client = RemoteRetriever(self._options, self._protocol, retries=retries, sleep=self._sleep)
        try:
            client.search(["test"], 1)
        except RetrievalError as error:
            raise ConfigError(
                f"environment.retriever.url: {error}; start the server, such as Search-R1's, or correct "
                "the address"
            ) from error

    async def _fetch(self, queries: list[str], top_k: int) -> dict[str, list[str]]:
        """Return the contents of the documents found for each of some distinct queries."""
        import httpx

        seconds = self._options.timeout_s
        # Reading the certificates, which plain http does not need, takes longer than a search.
        verify = self._options.url.startswith("https")
        contents: dict[str, list[str]] = {}
        async with httpx.AsyncClient(timeout=seconds, verify=verify, trust_env=False) as client:
            for start in range(0, len(queries), _BATCH):
                batch = queries[start : start + _BATCH]
                results = await self._request(client, batch, top_k)
                contents.update(zip(batch, results, strict=True))
        return contents

    async def _request(self, client: Any, queries: list[str], top_k: int) -> list[list[str]]:
        """Send one batch, with retries."""
        import httpx

        request = json.dumps({"queries": queries, "topk": top_k, "return_scores": True}).encode()
        seconds = self._options.timeout_s
        failure = ""
        for attempt in range(self._retries + 1):
            if attempt:
                await self._sleep(min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)))
            try:
                # httpx limits each read; this limits their sum, against a server that sends slowly.
                async with asyncio.timeout(seconds):
                    return read_reply(await self._reply(client, request), len(queries), top_k)
            except (TimeoutError, httpx.TimeoutException):
                failure = f"no whole reply within {seconds:g} s"
            except (httpx.TransportError, httpx.InvalidURL, OSError) as error:
                failure = named(error)
            except _OverloadError as error:
                failure = str(error)
            except ValueError as error:
                raise self._error(str(error)) from error
        raise self._error(f"{failure}, in {self._retries + 1} attempt(s)")

    async def _reply(self, client: Any, request: bytes) -> bytes:
        """Return the reply's bytes.

        Raises:
            _OverloadError: a status for which the request is repeated.
            ValueError: another status than 200, or too large a reply.
        """
        url = self._options.url
        data = bytearray()
        async with client.stream("POST", url, content=request, headers=_HEADERS) as response:
            status = response.status_code
            if status == 429 or status >= 500:
                raise _OverloadError(f"status {status}")
            if status != 200:
                raise ValueError(
                    f"status {status} (is the address right? It ends in /retrieve, and redirects are not "
                    "followed)"
                )
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > _REPLY_BYTES:
                    raise ValueError(f"the reply is larger than {_REPLY_BYTES} bytes")
        return bytes(data)

    def _error(self, reason: str) -> RetrievalError:
        return RetrievalError(f"the retrieval server {self._options.url}: {reason}")


class _OverloadError(Exception):
    """The server may answer the same request later."""


def read_reply(data: bytes, queries: int, top_k: int) -> list[list[str]]:
    """Parse a server's reply into the contents of each query's documents, at most `top_k`.

    Raises:
        ValueError: it is not of Search-R1's form, or has not one list for each of `queries` queries;
            one short line.
    """
    try:
        reply: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply is not JSON ({type(error).__name__})") from error
    try:
        contents = [
            [encodable(hit["document"]["contents"]) for hit in row[:top_k]]
            for row in reply["result"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the reply begins {data[:60]!r}; expected {_FORM}") from error
    if len(contents) != queries:
        raise ValueError(f"the reply has {len(contents)} results for {queries} queries")
    return contents
