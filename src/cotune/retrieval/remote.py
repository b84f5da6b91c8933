"""The client of a retrieval server with Search-R1's `/retrieve`.

A request is `{"queries": […], "topk": k, "return_scores": true}`, the reply `{"result": [[{"document":
{"contents"}, …}, …], …]}`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from cotune.errors import ConfigError, RetrievalError
from cotune.types import Section
from cotune.utils.text import encodable, named
from cotune.utils.values import check_range, check_url

_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 30.0
_FORM = '{"result": [[{"document": {"contents": "…"}}, …], …]}'


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(Section):
    """`environment.retriever` of a run file, for a retrieval server.

    Attributes:
        url: where queries are posted: http://127.0.0.1:8000/retrieve.
        timeout_s: seconds that the server may take to connect, and be silent before and within a reply.
    """

    url: str
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        check_url("url", self.url, "/retrieve")
        check_range("timeout_s", self.timeout_s, 0.01, 3600)


class RemoteRetriever:
    """A `Retriever` that asks a server with Search-R1's interface.

    Broken connections, timeouts and the statuses 429 and 5xx are retried, after a wait that doubles.
    Other statuses, redirects, and replies that do not fit the request are final. Proxies of the
    environment are not used. Can be used by several threads at the same time.

    Args:
        options: the server and its time limit.
        retries: further attempts after the first one failed.
    """

    parallel_searches = 8

    def __init__(self, options: RemoteOptions, *, retries: int = 3) -> None:
        self._options = options
        self._retries = retries

    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        """Return the passages of each query as text, best first, at most `top_k`.

        Equal queries are sent once, all in one request.

        Raises:
            RetrievalError: the server is down, too slow, refuses, or sends no usable reply.
        """
        sent = [encodable(query) for query in queries]
        distinct = list(dict.fromkeys(sent))
        results = self._request(distinct, top_k) if distinct else []
        contents = dict(zip(distinct, results, strict=True))
        return [list(map(format_passage, contents[query])) for query in sent]

    def check(self) -> None:
        """Request one passage, at most twice, so that a wrong address is found before training starts.

        Raises:
            ConfigError: the server returned no usable reply.
        """
        try:
            RemoteRetriever(self._options, retries=min(self._retries, 1)).search(["test"], 1)
        except RetrievalError as error:
            raise ConfigError(
                f"environment.retriever.url: {error}; start the server, such as Search-R1's, or correct the address"
            ) from error

    def _request(self, queries: list[str], top_k: int) -> list[list[str]]:
        """Return the contents of the documents found for each query, after retries if need be."""
        import httpx

        url = self._options.url
        seconds = self._options.timeout_s
        request = {"queries": queries, "topk": top_k, "return_scores": True}
        failure = ""
        for attempt in range(self._retries + 1):
            if attempt:
                sleep(min(_MAX_WAIT_S, _FIRST_WAIT_S * 2 ** (attempt - 1)))
            try:
                # Reading the certificates, which plain http does not need, takes longer than a search.
                verify = url.startswith("https")
                reply = httpx.post(
                    url, json=request, timeout=seconds, verify=verify, trust_env=False
                )
                if reply.status_code == 200:
                    return read_reply(reply.content, len(queries), top_k)
                failure = f"status {reply.status_code}"
                if reply.status_code != 429 and reply.status_code < 500:
                    raise ValueError(f"{failure}: check the address; redirects are not followed")
            except httpx.TimeoutException:
                failure = f"no reply within {seconds:g} s"
            except (httpx.RequestError, httpx.InvalidURL, OSError) as error:
                failure = named(error)
            except ValueError as error:
                raise RetrievalError(f"the retrieval server {url}: {error}") from error
        raise RetrievalError(
            f"the retrieval server {url}: {failure}, in {self._retries + 1} attempt(s)"
        )


def format_passage(contents: str) -> str:
    """Return a passage as Search-R1's `_passages2string` writes it: the first line is the title, with its quotes."""
    title, _, text = contents.partition("\n")
    return f"(Title: {title}) {text}"


def read_reply(data: bytes, queries: int, top_k: int) -> list[list[str]]:
    """Parse a server's reply into the contents of each query's documents, at most `top_k`.

    Raises:
        ValueError: it is not of Search-R1's form, or has not one list for each of `queries` queries; one short line.
    """
    try:
        contents = [
            [encodable(hit["document"]["contents"]) for hit in row[:top_k]]
            for row in json.loads(data)["result"]
        ]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: the reply begins {data[:60]!r}"
        raise ValueError(f"{reason}; expected {_FORM}") from error
    if len(contents) != queries:
        raise ValueError(f"the reply has {len(contents)} results for {queries} queries")
    return contents
